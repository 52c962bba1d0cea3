"""Conversions between the messages of `mnemesh.blocks.v1` and the domain."""
