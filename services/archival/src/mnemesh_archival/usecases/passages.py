"""The use cases that insert, read, update and delete passages."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, derive_id
from mnemesh_kit.time import Clock
from mnemesh_types import archival
from mnemesh_types.archival import EmbedderIdentity

from mnemesh_archival.errors import PassageExists, PassageNotFound
from mnemesh_archival.model.inserts import (
    InsertFailure,
    InsertOutcome,
    InsertTarget,
    new_passage,
    validate_batch,
)
from mnemesh_archival.model.passages import MAX_DELETED, Continuity, Passage, validate_update, validated_selection
from mnemesh_archival.store.passages import PassageStore
from mnemesh_archival.store.tables import DefaultArchive, InsertBatch, StoredInsert
from mnemesh_archival.vectors import Embedders, PassageIndex

P = TypeVar("P", bound=archival.Passage)


class PassageService:
    """Passages of the caller's organization. Every mutation takes the request's idempotency key, or None.

    A mutation is durable when its transaction is committed. The index is updated within the call if it can be; the call
    succeeds in any case, and the indexer repeats what is missing.
    """

    def __init__(
        self, passages: PassageStore, index: PassageIndex, embedders: Embedders, clock: Clock, ids: IdSource
    ) -> None:
        self._passages = passages
        self._index = index
        self._embedders = embedders
        self._clock = clock
        self._ids = ids

    async def insert(
        self,
        caller: Principal,
        target: InsertTarget,
        drafts: Sequence[Passage | MnemeshError],
        key: RequestKey | None,
        *,
        default_embedder: str = "",
        continuity: Continuity = Continuity.AUTOMATIC,
        restores: bool = False,
    ) -> list[InsertOutcome]:
        """Inserts a batch of passages.

        Args:
            caller: the caller.
            target: the archive, or the agent whose first archive it is. An agent without one gets a default archive.
            drafts: the passages, with the error in place of each that could not be decoded.
            key: the idempotency key. The ids of new passages derive from it.
            default_embedder: the embedder of the default archive, if it is created; empty for the service's default.
            continuity: whether the passages belong together: AUTOMATIC, CONTINUOUS or SEPARATE.
            restores: whether the passages were exported, so that those of the archive may exist.

        Returns:
            One outcome for each draft, in order.

        Raises:
            InvalidArgument: the batch is empty or too large.
            MnemeshError: the first error, if no passage can be stored.
            ArchiveNotFound, AgentErased: the target cannot be written to.
            EmbedderUnknown: the default embedder cannot be built.
        """
        organization_id = caller.organization_id
        drafts = validate_batch(drafts)
        embedder = default_embedder or self._embedders.default
        dimension = self._embedders.get(embedder, "default_embedder").dimension
        batch = InsertBatch(
            target=target,
            default=DefaultArchive(embedder, dimension, caller.subject_id),
            passages=self._new_passages(organization_id, target, drafts, key),
            caller_ids=frozenset(draft.id for draft in drafts if isinstance(draft, Passage) and draft.id),
            continuity=continuity,
            restores=restores,
        )
        stored = await self._passages.insert(organization_id, batch, key, self._index.claim())
        await self._index.apply(stored.changes)
        return await self._outcomes(organization_id, stored, drafts)

    async def get(self, caller: Principal, passage_id: str, *, with_embedding: bool = False) -> Passage:
        """Returns a passage. Raises PassageNotFound."""
        found = await self._passages.get(caller.organization_id, [passage_id])
        if passage_id not in found:
            raise PassageNotFound(passage_id)
        if not with_embedding:
            return found[passage_id]
        return (await with_embeddings(self._passages, self._index, caller.organization_id, [found[passage_id]]))[0]

    async def update(
        self, caller: Principal, passage_id: str, draft: Passage, fields: Sequence[str], key: RequestKey | None
    ) -> Passage:
        """Sets the named fields to the values of the draft.

        Raises:
            InvalidArgument: a field cannot be updated, or its value is bad.
            PassageNotFound: there is no such passage.
        """
        change = validate_update(draft, fields, self._clock.now())
        changes = await self._passages.update(caller.organization_id, passage_id, change, key, self._index.claim())
        await self._index.apply(changes)
        return await self.get(caller, passage_id)

    async def delete(self, caller: Principal, passage_id: str, key: RequestKey | None) -> None:
        """Deletes a passage permanently. Raises PassageNotFound if it never existed."""
        changes = await self._passages.delete(caller.organization_id, passage_id, key, self._index.claim())
        await self._index.apply(changes)

    async def delete_many(
        self,
        caller: Principal,
        archive_id: str,
        passage_ids: Sequence[str],
        file_id: str | None,
        key: RequestKey | None,
    ) -> tuple[int, bool]:
        """Deletes passages of an archive by id, or those of a file, at most MAX_DELETED.

        Returns:
            Their number, and whether the file has more.

        Raises:
            InvalidArgument: there are too many ids, or not exactly one of ids and file.
            ArchiveNotFound: the archive does not exist.
        """
        selection = validated_selection(passage_ids, file_id)
        count, has_more, changes = await self._passages.delete_many(
            caller.organization_id, archive_id, selection, MAX_DELETED, key, self._index.claim()
        )
        await self._index.apply(changes)
        return count, has_more

    def _new_passages(
        self,
        organization_id: str,
        target: InsertTarget,
        drafts: Sequence[Passage | MnemeshError],
        key: RequestKey | None,
    ) -> tuple[Passage | None, ...]:
        now = self._clock.now()
        passages: list[Passage | None] = []
        for index, draft in enumerate(drafts):
            if isinstance(draft, MnemeshError):
                passages.append(None)
                continue
            new_id = self._ids.new("passage")
            if key is not None:
                new_id = derive_id("passage", organization_id, key.request_id, str(index))
            passages.append(new_passage(draft, target, new_id, index, now))
        return tuple(passages)

    async def _outcomes(
        self, organization_id: str, stored: StoredInsert, drafts: Sequence[Passage | MnemeshError]
    ) -> list[InsertOutcome]:
        passages = {passage.id: passage for passage in stored.new}
        missing = [
            entry.passage_id for entry in stored.entries if entry.passage_id and entry.passage_id not in passages
        ]
        if missing:
            passages |= await self._passages.get(organization_id, missing)
        outcomes: list[InsertOutcome] = []
        for entry, draft in zip(stored.entries, drafts, strict=True):
            if isinstance(draft, MnemeshError):
                outcomes.append(InsertOutcome(failure=_failure(draft)))
            elif entry.reason:
                outcomes.append(InsertOutcome(failure=_failure(PassageExists(draft.id or ""))))
            else:
                passage = passages.get(entry.passage_id)
                deleted_id = entry.passage_id if passage is None else None
                outcomes.append(InsertOutcome(passage, None, deleted_id, "", entry.duplicate, entry.vector_use))
        return outcomes


async def with_embeddings(
    passages: PassageStore, index: PassageIndex, organization_id: str, found: Sequence[P]
) -> list[P]:
    """Returns passages with their vectors. One that the index has no vector of stays without."""
    points = await passages.points(organization_id, [passage.id for passage in found])
    ids = {point.point_id: passage_id for passage_id, point in points.items()}
    embedded: dict[str, dict[str, Any]] = {}
    for embedder in {point.embedder for point in points.values()}:
        of_embedder = [point.point_id for point in points.values() if point.embedder == embedder]
        for point_id, vector in (await index.vectors(embedder, of_embedder)).items():
            embedded[ids[point_id]] = {"embedding": vector, "embedded_by": EmbedderIdentity(embedder, len(vector))}
    return [replace(passage, **embedded.get(passage.id, {})) for passage in found]


def _failure(error: MnemeshError) -> InsertFailure:
    return InsertFailure(error.reason, error.message, error.metadata)
