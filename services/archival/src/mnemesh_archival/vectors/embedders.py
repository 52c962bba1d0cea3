"""The embedders that archives name."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from mnemesh_kit.deadline import remaining
from mnemesh_retrieval.embedder import CountedVectors, Embedder, Vector, embed_counted
from mnemesh_retrieval.errors import EmbedderError, EmbedderMisconfigured, EmbedderRejected
from mnemesh_retrieval.errors import EmbedderUnavailable as EmbedderUnreachable
from mnemesh_retrieval.registry import EmbedderSettings, make_embedder

from mnemesh_archival.errors import EmbedderUnavailable, EmbedderUnknown

MAX_KEPT: Final = 64
"""The number of embedders over HTTP that are kept, so that callers that name many models do not fill the memory."""
MARGIN_SECONDS = 0.5
"""How long before the caller's deadline a call to an embedder is abandoned, so that its error still arrives."""


class Embedders:
    """Embedders by handle. Each is built when first used, and kept unless 64 others were used since."""

    def __init__(self, default: Embedder, settings: EmbedderSettings) -> None:
        self.default = default.handle
        self._settings = settings
        self._by_handle: dict[str, Embedder] = {default.handle: default}
        self._calls: Counter[str] = Counter()
        """The calls that use each embedder now."""

    def get(self, handle: str, field: str = "archive.embedder") -> Embedder:
        """Returns the embedder.

        Raises:
            EmbedderUnknown: the configuration does not allow to build it. `field` is the field of the request.
        """
        embedder = self._by_handle.pop(handle, None)
        if embedder is None:
            try:
                embedder = make_embedder(handle, self._settings)
            except EmbedderMisconfigured as error:
                raise EmbedderUnknown(handle, str(error), field) from error
        self._by_handle[handle] = embedder  # the last one is the one used last
        return embedder

    async def embed(self, handle: str, texts: Sequence[str], *, within: float | None = None) -> list[Vector]:
        """Returns one vector per text; see `embed_counted`."""
        return (await self.embed_counted(handle, texts, within=within)).vectors

    async def embed_counted(self, handle: str, texts: Sequence[str], *, within: float | None = None) -> CountedVectors:
        """Returns one vector per text, and the tokens of all if the embedder knows them.

        Args:
            handle: the embedder.
            texts: the texts.
            within: the time limit in seconds; by default what the caller's deadline leaves.

        Raises:
            EmbedderUnavailable: the embedder failed, or did not answer in time.
        """
        left = remaining()
        if within is None and left is not None:
            within = max(0.0, left - MARGIN_SECONDS)
        try:
            async with self._used(handle) as embedder, asyncio.timeout(within):
                return await embed_counted(embedder, texts)
        except TimeoutError as error:
            raise EmbedderUnavailable(handle, "no answer in time") from error
        except EmbedderError as error:
            raise EmbedderUnavailable(handle, str(error)) from error

    @asynccontextmanager
    async def _used(self, handle: str) -> AsyncIterator[Embedder]:
        """Yields an embedder, and then closes those that were not used for longest."""
        embedder = self.get(handle)
        self._calls[handle] += 1
        try:
            yield embedder
        finally:
            self._calls[handle] -= 1
            if not self._calls[handle]:
                del self._calls[handle]
            await self._close_unused()

    async def _close_unused(self) -> None:
        surplus = len(self._by_handle) - MAX_KEPT
        if surplus <= 0:
            return
        unused = [
            handle
            for handle in self._by_handle
            if handle != self.default and not handle.startswith("mnemesh/") and handle not in self._calls
        ]
        for embedder in [self._by_handle.pop(handle) for handle in unused[:surplus]]:
            await embedder.close()

    async def close(self) -> None:
        """Closes all embedders."""
        for embedder in self._by_handle.values():
            await embedder.close()
        self._by_handle.clear()


class CollectionEmbedder:
    """The embedder of a collection, for the indexer. One that the configuration does not allow is unavailable."""

    def __init__(self, embedders: Embedders, handle: str, dimension: int) -> None:
        self._embedders = embedders
        self.handle = handle
        self.dimension = dimension

    @property
    def similarity_weight(self) -> float:
        """See Embedder.similarity_weight."""
        return self._embedders.get(self.handle).similarity_weight

    @property
    def least_similarity(self) -> float:
        """See Embedder.least_similarity."""
        return self._embedders.get(self.handle).least_similarity

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """See Embedder.embed."""
        try:
            return await self._embedders.embed(self.handle, texts)
        except (EmbedderUnavailable, EmbedderUnknown) as error:
            if isinstance(error.__cause__, EmbedderRejected):
                raise error.__cause__ from error
            raise EmbedderUnreachable(str(error)) from error

    async def close(self) -> None:
        """Does nothing: the embedder is shared."""
