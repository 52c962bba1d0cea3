"""Letta's agent files (.af)."""
