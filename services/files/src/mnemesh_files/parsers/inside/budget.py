"""What is left of the limits while one document is parsed."""

from __future__ import annotations

import time
from typing import Final

from mnemesh_files.parsers.document import ParseLimits
from mnemesh_files.parsers.lines import MAX_DOCUMENT_LINE, TextBuilder

_SHARE_OF_TIME: Final = 0.7
"""The share after which a parser stops and returns what it has. The rest is for the result."""


class Budget:
    """The limits of one document, its time, and the warnings about what was left out."""

    def __init__(self, limits: ParseLimits) -> None:
        self.limits = limits
        self.warnings: list[str] = []
        self._deadline = time.monotonic() + limits.seconds * _SHARE_OF_TIME

    @property
    def is_late(self) -> bool:
        """Whether the parser must stop soon."""
        return time.monotonic() > self._deadline

    def builder(self, max_line: int = MAX_DOCUMENT_LINE) -> TextBuilder:
        """Returns an empty text that keeps the limit of characters."""
        return TextBuilder(self.limits.document_characters, max_line)

    def warn(self, text: str) -> None:
        """Adds a warning, once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def warn_if_full(self, text: TextBuilder) -> None:
        """Adds a warning if the text reached the limit of characters."""
        if text.is_full:
            self.warn(f"The text has more than {self.limits.document_characters:,} characters. The rest was left out.")

    def pages_to_read(self, total: int, noun: str) -> int:
        """Returns how many of the pages are read, and warns about the others.

        Args:
            total: The number of pages.
            noun: What they are, in the plural.
        """
        limit = self.limits.pages
        if total > limit:
            self.warn(f"{noun.capitalize()} {limit + 1:,} to {total:,} are beyond the limit of {limit:,} {noun}.")
        return min(total, limit)

    def warn_late(self, page: int, total: int, noun: str) -> None:
        """Adds a warning that the time is over before a page."""
        self.warn(f"{noun.capitalize()} {page:,} to {total:,} were left out: reading them takes too long.")
