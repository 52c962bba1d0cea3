"""Texts to embed: limits, batches, and the vectors that are returned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.request_bounds import MAX_TEXTS
from mnemesh_kit.text import require_text
from mnemesh_retrieval.embedder import Vector

from mnemesh_archival.model.archives import MAX_NAME_CHARS, require_no_control_characters
from mnemesh_archival.model.passages import MAX_TEXT_BYTES

MAX_ALL_TEXTS_BYTES: Final = 3_000_000
MAX_NUMBERS: Final = 2048 * 3072
"""The largest count of numbers in the vectors of a response: 24 MiB."""
BATCH_TEXTS: Final = 128
BATCH_CHARS: Final = 200_000


@dataclass(frozen=True, slots=True)
class EmbeddedTexts:
    """The vectors of texts, in order."""

    embedder: str
    """The embedder that was used."""
    dimension: int
    vectors: Sequence[Vector]
    """One for each text, of shape (dimension,), with norm 1 or zero."""
    tokens: int | None = None
    """The tokens of the texts; None if the embedder does not know them."""


def validate_texts(embedder: str, texts: Sequence[str]) -> None:
    """Checks a handle, which may be empty, and the texts.

    Raises:
        InvalidArgument: the handle or a text is not valid, or there are no texts or too many.
    """
    require_no_control_characters(embedder, "embedder", MAX_NAME_CHARS)
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise InvalidArgument(f"texts must have 1 to {MAX_TEXTS:,} values.", field="texts")
    for index, text in enumerate(texts):
        require_text(text, f"texts[{index}]", max_bytes=MAX_TEXT_BYTES)
    if sum(len(text.encode()) for text in texts) > MAX_ALL_TEXTS_BYTES:
        raise InvalidArgument(
            f"texts must have at most {MAX_ALL_TEXTS_BYTES:,} bytes together. Send several requests.", field="texts"
        )


def validate_count(count: int, embedder: str, dimension: int) -> None:
    """Raises InvalidArgument if the vectors of the texts are too large for one response."""
    if count * dimension > MAX_NUMBERS:
        raise InvalidArgument(
            f"texts must have at most {MAX_NUMBERS // dimension:,} values for the embedder {embedder}, whose vectors "
            f"have {dimension:,} numbers. Send several requests.",
            field="texts",
        )


def batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yields the texts in order, in batches of at most 128 texts and 200,000 characters, or of one long text."""
    batch: list[str] = []
    chars = 0
    for text in texts:
        if batch and (len(batch) == BATCH_TEXTS or chars + len(text) > BATCH_CHARS):
            yield batch
            batch, chars = [], 0
        batch.append(text)
        chars += len(text)
    if batch:
        yield batch
