"""An exact vector index in one SQLite file, with the vectors of each tenant stored together."""

from mnemesh_retrieval.flat.index import FlatIndex

__all__ = ["FlatIndex"]
