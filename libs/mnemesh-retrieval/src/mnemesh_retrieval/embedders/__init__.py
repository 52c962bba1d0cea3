"""The embedders. Each is imported only if it is configured."""
