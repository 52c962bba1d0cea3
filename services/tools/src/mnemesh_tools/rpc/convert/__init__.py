"""Conversions between the messages of `mnemesh.tools.v1` and the domain."""
