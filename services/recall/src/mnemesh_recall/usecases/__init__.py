"""The use cases of recall: validation, then the store, then a notification of the vector index."""
