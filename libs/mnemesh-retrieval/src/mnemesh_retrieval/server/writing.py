"""Writes of points to a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from qdrant_client import AsyncQdrantClient, models

from mnemesh_retrieval.index import Collection, Payload, Point, WriteMode
from mnemesh_retrieval.search_parts import stored_vector
from mnemesh_retrieval.server.features import Features, with_runs
from mnemesh_retrieval.server.schema import DENSE, TEXT
from mnemesh_retrieval.words.sparse import document_vector

_MODES: Final = {
    WriteMode.UPSERT: models.UpdateMode.UPSERT,
    WriteMode.INSERT_ABSENT: models.UpdateMode.INSERT_ONLY,
    WriteMode.UPDATE_PRESENT: models.UpdateMode.UPDATE_ONLY,
}
_NO_POINT: Final = models.Filter(must=[models.HasIdCondition(has_id=[])])


class PointWriter:
    """Writes points with the features of the server. The client's errors are raised as they are."""

    def __init__(self, client: AsyncQdrantClient, features: Features) -> None:
        self._client = client
        self._features = features

    async def write(self, name: str, collection: Collection, points: Sequence[Point], mode: WriteMode) -> None:
        """Writes points to the collection that the server knows by `name`. Of points with the same id, the last one."""
        whole = list({point.id: self._struct(point, collection) for point in points}.values())
        if not whole:
            return
        if self._features.update_modes:
            await self._client.upsert(name, whole, wait=True, update_mode=_MODES[mode])
        else:
            await self._write_without_modes(name, whole, mode)

    def payload(self, fields: Payload, collection: Collection) -> dict[str, object]:
        """Returns payload fields as the server stores them."""
        return dict(fields) if self._features.substrings else with_runs(fields, tuple(collection.text_fields))

    async def _write_without_modes(self, name: str, points: list[models.PointStruct], mode: WriteMode) -> None:
        """Writes to a server of version 1.16.

        It has no write of present points only. Theirs are looked up first, and one that is deleted meanwhile returns.
        """
        if mode is WriteMode.UPDATE_PRESENT:
            present = await self._client.retrieve(name, [point.id for point in points], with_payload=False)
            ids = {record.id for record in present}
            points = [point for point in points if point.id in ids]
        unchanged = _NO_POINT if mode is WriteMode.INSERT_ABSENT else None
        if points:
            await self._client.upsert(name, points, wait=True, update_filter=unchanged)

    def _struct(self, point: Point, collection: Collection) -> models.PointStruct:
        vectors: dict[str, Any] = {}
        dense = stored_vector(point, collection.dimension)
        if dense is not None:
            vectors[DENSE] = dense
        words = document_vector(point.text)
        if words:
            vectors[TEXT] = models.SparseVector(indices=list(words), values=list(words.values()))
        return models.PointStruct(id=str(point.id), vector=vectors, payload=self.payload(point.payload, collection))
