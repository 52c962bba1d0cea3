"""The storage of recall."""
