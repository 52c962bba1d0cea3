"""The vector index on Qdrant's engine in this process; the only code that uses the engine's types."""

from mnemesh_retrieval.edge.index import EdgeIndex

__all__ = ["EdgeIndex"]
