"""The use cases of the files service."""
