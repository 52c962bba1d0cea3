"""The index of likeness in one SQLite file: small vectors, kept together by whom they belong to."""

from mnemesh_retrieval.flat.index import FlatIndex

__all__ = ["FlatIndex"]
