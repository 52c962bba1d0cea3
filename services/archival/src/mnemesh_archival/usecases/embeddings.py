"""The use case that embeds texts for callers. It stores nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final
from weakref import WeakValueDictionary

from mnemesh_kit.call_context import Principal, remaining
from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.errors import EmbedderRejected

from mnemesh_archival.errors import EmbedderRefused, EmbedderUnavailable
from mnemesh_archival.model.embeddings import EmbeddedTexts, batches, validate_count, validate_texts
from mnemesh_archival.vectors import MARGIN_SECONDS, Embedders

CONCURRENT_CALLS: Final = 4
"""The number of calls that use one embedder at a time. Others wait within their deadlines."""
MAX_SECONDS: Final = 60.0
"""The time limit of a call without a deadline."""


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
