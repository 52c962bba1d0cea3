"""Recall memory: every message ever, and the context window of each conversation."""
