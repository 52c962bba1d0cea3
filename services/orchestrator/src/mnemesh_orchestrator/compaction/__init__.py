"""Keeping a conversation within its model's window."""
