"""The handles of the built-in embedders."""

from __future__ import annotations

from typing import Final

WORDLLAMA: Final = "mnemesh/wordllama-256"
HASHING: Final = "mnemesh/hashing-256"
