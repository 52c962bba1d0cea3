"""Irregular English forms that no stemmer reduces to their base: 'went' of 'go', 'children' of 'child'."""

from __future__ import annotations

import re
from importlib import resources
from typing import Final

_FAMILIES: Final = tuple(
    tuple(line.split())
    for line in (resources.files("mnemesh_retrieval") / "irregular_words.txt").read_text(encoding="utf-8").splitlines()
)
LEMMAS: Final = {form: base for base, *forms in _FAMILIES for form in forms}
"""The base of each irregular form, in lower case."""
_FAMILY_OF: Final = {form: family for family in _FAMILIES for form in family}
_WORD: Final = re.compile(r"[^\W\d_]+")
_NEGATIONS: Final = re.compile(r"\b(wo|sha)n['\u2019]t\b", re.IGNORECASE)


def expanded(text: str) -> str:
    """Returns a text with "will not" for "won't" and "shall not" for "shan't", whose first parts are other words."""
    return _NEGATIONS.sub(lambda found: "will not" if found[1].lower() == "wo" else "shall not", text)


def other_forms(query: str) -> dict[str, str]:
    """Returns the other forms of a query's irregular words, each with the word of the query that it belongs to."""
    words = dict.fromkeys(word.lower() for word in _WORD.findall(expanded(query)))
    return {form: word for word in words for form in _FAMILY_OF.get(word, ()) if form not in words}
