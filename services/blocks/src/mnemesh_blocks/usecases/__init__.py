"""The use cases of core memory."""
