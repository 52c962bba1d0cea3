"""Embedders and the vector index of mnemesh: two ports, their adapters, and what they have in common."""
