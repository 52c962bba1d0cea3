"""Passages and their vectors in the vector index, and the embedders."""
