"""Compaction: keeps a conversation within the context window of its model."""
