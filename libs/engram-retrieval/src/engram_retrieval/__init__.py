"""Embedders and the vector index of engram: two ports, their adapters, and what they have in common."""
