"""The index of likeness in one SQLite file: small vectors, kept together by whom they belong to."""

from mnemesh_retrieval.blocks.index import BlockIndex

__all__ = ["BlockIndex"]
