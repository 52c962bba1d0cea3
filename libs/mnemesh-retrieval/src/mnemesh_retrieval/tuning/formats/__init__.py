"""The file formats of dialogues. `read_dialogues` recognises the format."""

from mnemesh_retrieval.tuning.formats.reading import read_dialogues

__all__ = ["read_dialogues"]
