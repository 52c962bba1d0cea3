"""Recall memory: every message ever written, and the context window of each conversation."""
