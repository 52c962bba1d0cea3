"""Irregular English forms that no stemmer reduces to their base: 'went' of 'go', 'children' of 'child'."""

from __future__ import annotations

from importlib import resources
from typing import Final

_LINES: Final = (resources.files("mnemesh_retrieval.words") / "irregular_words.txt").read_text(encoding="utf-8")
BASES: Final = {form: base for base, *forms in map(str.split, _LINES.splitlines()) for form in forms}
"""The base of each irregular form, in lower case."""
