"""The embedders that archives name, built when first needed and kept; their failures in this room's words."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mnemesh_kit.deadline import remaining
from mnemesh_retrieval.embedder import Embedder, Vector
from mnemesh_retrieval.errors import EmbedderError, EmbedderMisconfigured
from mnemesh_retrieval.registry import EmbedderSettings, make_embedder

from mnemesh_archival.errors import EmbedderUnavailable, EmbedderUnknown

MARGIN_SECONDS = 0.5
"""How long before the caller's deadline a call gives up on an embedder: a refusal that says why must still arrive."""


class Embedders:
    """Embedders by their handles."""

    def __init__(self, default: Embedder, settings: EmbedderSettings) -> None:
        self.default = default.handle
        self._settings = settings
        self._made: dict[str, Embedder] = {default.handle: default}

    def get(self, handle: str) -> Embedder:
        """The embedder of that handle; EmbedderUnknown if the configuration cannot make one."""
        embedder = self._made.get(handle)
        if embedder is None:
            try:
                embedder = self._made[handle] = make_embedder(handle, self._settings)
            except EmbedderMisconfigured as error:
                raise EmbedderUnknown(handle, str(error)) from error
        return embedder

    async def embed(self, handle: str, texts: Sequence[str], *, within: float | None = None) -> list[Vector]:
        """One vector per text; EmbedderUnavailable if it cannot be done now, or not `within` so many seconds.

        Without `within` it is what the caller's own deadline leaves.
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
        """Close all."""
        for embedder in self._made.values():
            await embedder.close()
        self._made.clear()
