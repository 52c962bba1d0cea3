"""Calling models: one port, and an adapter per provider API behind it."""
