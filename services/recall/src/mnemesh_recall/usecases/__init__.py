"""The use cases of recall: validation and rules, then the store, then the vector index."""
