"""The vector index on Qdrant's engine inside this process; the only code that knows its types."""

from mnemesh_retrieval.edge.index import EdgeIndex

__all__ = ["EdgeIndex"]
