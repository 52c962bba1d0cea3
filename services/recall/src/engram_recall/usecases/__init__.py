"""The use cases of recall that are not of messages."""
