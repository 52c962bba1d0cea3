"""Embedders and the vector index of mnemesh: two ports and their adapters."""
