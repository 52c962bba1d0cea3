"""Texts of a given size, from a fixed sequence of random words."""

import random
from typing import Final

from benchmarks.agents import WORDS

_WORDS: Final = WORDS.split()
_WORDS_PER_LINE: Final = 12


def text(number: int, size: int) -> str:
    """Returns a text of about `size` characters. Equal numbers have equal texts. Line 7 names the number."""
    chance, lines, length = random.Random(number), [f"# Report {number}", ""], 0
    while length < size:
        line = " ".join(chance.choices(_WORDS, k=_WORDS_PER_LINE))
        if len(lines) == 6:
            line += f" reference-{number:05}"
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines) + "\n"
