"""The use case that embeds texts for callers. It stores nothing."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from mnemesh_kit.call_context import Principal, remaining
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.request_bounds import MAX_TEXTS
from mnemesh_kit.text import require_text
from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.errors import EmbedderRejected

from mnemesh_archival.errors import EmbedderRefused, EmbedderUnavailable
from mnemesh_archival.model.archives import MAX_NAME_CHARS, require_no_control_characters
from mnemesh_archival.model.passages import MAX_TEXT_BYTES
from mnemesh_archival.vectors import MARGIN_SECONDS, Embedders

MAX_ALL_TEXTS_BYTES: Final = 3_000_000
MAX_NUMBERS: Final = 2048 * 3072
"""The largest count of numbers in the vectors of a response: 24 MiB."""
BATCH_TEXTS: Final = 128
BATCH_CHARS: Final = 200_000
CONCURRENT_CALLS: Final = 4
"""The number of calls that use one embedder at a time. Others wait within their deadlines."""
MAX_SECONDS: Final = 60.0
"""The time limit of a call without a deadline."""


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


class EmbeddingService:
    """Vectors of texts.

    Texts are embedded in batches, one after another, so that searches and the indexer have their turn at an embedder
    that works on one batch at a time.
    """

    def __init__(self, embedders: Embedders) -> None:
        self._embedders = embedders
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def embed(self, caller: Principal, embedder: str, texts: Sequence[str]) -> EmbeddedTexts:  # noqa: ARG002
        """Returns the vectors of texts.

        Args:
            caller: the caller. Embedders are the same for all organizations.
            embedder: the handle of an embedder; empty for the service's default.
            texts: 1 to 2048 texts.

        Raises:
            InvalidArgument: the handle or the texts are not valid.
            EmbedderUnknown: the configuration does not allow to build the embedder.
            EmbedderUnavailable: the embedder failed, or did not answer in time.
            EmbedderRefused: the embedder's provider refused the request.
        """
        validate_texts(embedder, texts)
        handle = embedder or self._embedders.default
        dimension = self._embedders.get(handle, "embedder").dimension
        validate_count(len(texts), handle, dimension)
        slots = self._slots.get(handle)
        if slots is None:
            slots = self._slots[handle] = asyncio.Semaphore(CONCURRENT_CALLS)
        left = remaining()
        seconds = MAX_SECONDS if left is None else max(0.0, left - MARGIN_SECONDS)
        vectors: list[Vector] = []
        tokens: int | None = 0
        try:
            async with asyncio.timeout(seconds), slots:
                for batch in batches(texts):
                    found = await self._embedders.embed_counted(handle, batch)
                    vectors += found.vectors
                    tokens = None if tokens is None or found.tokens is None else tokens + found.tokens
        except TimeoutError as error:
            raise EmbedderUnavailable(handle, "no answer in time") from error
        except EmbedderUnavailable as error:
            if isinstance(error.__cause__, EmbedderRejected):
                raise EmbedderRefused(handle, str(error.__cause__)) from error
            raise
        return EmbeddedTexts(handle, dimension, vectors, tokens)
