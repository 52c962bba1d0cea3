"""The limits of parsing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

MEGABYTE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseLimits:
    """What one document may cost. Beyond the limits marked partial, the rest is left out with a warning."""

    document_mb: int = 200
    """The size of a file that a parser in the sandbox receives."""
    text_bytes: int = 64 * MEGABYTE
    """Partial: the size of a text file."""
    document_characters: int = 10_000_000
    """Partial: the characters of the text of a document that is no text file, such as a PDF."""
    pages: int = 2_000
    """Partial: pages, slides and sheets."""
    rows: int = 200_000
    """Partial: the rows of all sheets of a workbook together."""
    columns: int = 500
    """Partial: the columns of a sheet or table."""
    pixels: int = 200_000_000
    """The pixels of an image."""
    expanded_mb: int = 500
    """The size of all parts of a compressed document together that a parser reads, after expansion."""
    expansion_ratio: int = 200
    """How many times larger a part may become by expansion, if it is larger than 1 MB then."""
    archive_entries: int = 20_000
    """The number of parts of a compressed document."""
    seconds: float = 60.0
    """The time for one document in the sandbox. Partial for pages of a PDF."""
    memory_mb: int = 1_024
    """The memory of one parser."""

    def to_values(self) -> dict[str, float]:
        """Returns the limits as JSON values, for `ParseLimits(**values)`."""
        return asdict(self)


DEFAULT_LIMITS: Final = ParseLimits()
