"""The use cases: archives, passages, search, and the background work on the vector index."""
