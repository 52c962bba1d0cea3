"""Turns and traces in SQL."""
