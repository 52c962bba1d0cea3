"""The embedders that archives name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mnemesh_kit.deadline import remaining
from mnemesh_retrieval.embedder import Embedder, Vector
from mnemesh_retrieval.errors import EmbedderError, EmbedderMisconfigured, EmbedderRejected
from mnemesh_retrieval.errors import EmbedderUnavailable as EmbedderUnreachable
from mnemesh_retrieval.registry import EmbedderSettings, make_embedder

from mnemesh_archival.errors import EmbedderUnavailable, EmbedderUnknown

MARGIN_SECONDS = 0.5
"""How long before the caller's deadline a call to an embedder is abandoned, so that its error still arrives."""


class Embedders:
    """Embedders by handle. Each is built when first used, and kept."""

    def __init__(self, default: Embedder, settings: EmbedderSettings) -> None:
        self.default = default.handle
        self._settings = settings
        self._by_handle: dict[str, Embedder] = {default.handle: default}

    def get(self, handle: str, field: str = "archive.embedder") -> Embedder:
        """Returns the embedder.

        Raises:
            EmbedderUnknown: the configuration does not allow to build it. `field` is the field of the request.
        """
        embedder = self._by_handle.get(handle)
        if embedder is None:
            try:
                embedder = self._by_handle[handle] = make_embedder(handle, self._settings)
            except EmbedderMisconfigured as error:
                raise EmbedderUnknown(handle, str(error), field) from error
        return embedder

    async def embed(self, handle: str, texts: Sequence[str], *, within: float | None = None) -> list[Vector]:
        """Returns one vector per text.

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
            async with asyncio.timeout(within):
                return await self.get(handle).embed(texts)
        except TimeoutError as error:
            raise EmbedderUnavailable(handle, "no answer in time") from error
        except EmbedderError as error:
            raise EmbedderUnavailable(handle, str(error)) from error

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
    def hybrid_weight(self) -> float:
        """See Embedder.hybrid_weight."""
        return self._embedders.get(self.handle).hybrid_weight

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
