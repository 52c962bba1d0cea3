"""The use cases that insert, read, update and delete passages.

Each change is recorded in SQL, applied to the index, and settled in SQL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from weakref import WeakValueDictionary

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, derive_id
from mnemesh_kit.principal import Principal
from mnemesh_retrieval.embedder import Vector

from mnemesh_archival.errors import ArchiveReembedding, PassageExists, PassageNotFound
from mnemesh_archival.model.inserts import (
    InsertEntry,
    InsertFailure,
    InsertOutcome,
    InsertTarget,
    new_passage,
    validate_batch,
)
from mnemesh_archival.model.operations import UpdatePoint
from mnemesh_archival.model.passages import Passage, PassageDraft, validate_update
from mnemesh_archival.store.base.passage_ledger import DefaultArchive, InsertBatch, PassageLedger, RecordedInsert
from mnemesh_archival.store.base.passages import PassageStore
from mnemesh_archival.usecases.operation_worker import OperationWorker
from mnemesh_archival.vectors.embedders import Embedders

SWITCH_SECONDS = 5.0
"""How long a write waits while its archive switches to another embedder."""
SWITCH_POLL_SECONDS = 0.02
T = TypeVar("T")


class PassageService:
    """Passages of the caller's organization. Every mutation takes the request's idempotency key, or None."""

    def __init__(
        self,
        ledger: PassageLedger,
        passages: PassageStore,
        operations: OperationWorker,
        embedders: Embedders,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._ledger = ledger
        self._passages = passages
        self._operations = operations
        self._embedders = embedders
        self._clock = clock
        self._ids = ids
        self._update_locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def insert(
        self,
        caller: Principal,
        target: InsertTarget,
        drafts: Sequence[PassageDraft | MnemeshError],
        key: RequestKey | None,
        *,
        default_embedder: str = "",
    ) -> list[InsertOutcome]:
        """Inserts a batch of passages.

        Args:
            caller: the caller.
            target: the archive, or the agent whose first archive it is. An agent without one gets a default archive.
            drafts: the passages, with the error in place of each that could not be decoded.
            key: the idempotency key. The ids of new passages derive from it.
            default_embedder: the embedder of the default archive, if it is created; empty for the service's default.

        Returns:
            One outcome for each draft, in order.

        Raises:
            InvalidArgument: the batch is empty or too large.
            MnemeshError: the first error, if no passage can be stored.
            ArchiveNotFound, AgentErased: the target cannot be written to.
            EmbedderUnavailable: the texts cannot be embedded now.
            EmbedderUnknown: the default embedder cannot be built.
        """
        organization_id = caller.organization_id
        drafts = validate_batch(drafts)
        default = default_embedder or self._embedders.default
        self._embedders.get(default, "default_embedder")
        passages = self._new_passages(organization_id, target, drafts, key)

        async def record() -> tuple[RecordedInsert, dict[str, Vector | None] | None]:
            resolved = await self._ledger.resolve_target(organization_id, target, default, key)
            vectors = None
            if not resolved.is_replay:
                new = [passage for passage in passages if passage is not None]
                texts = [passage.text for passage in new]
                embedded = await self._operations.embed(organization_id, resolved.archive_id, resolved.embedder, texts)
                vectors = {passage.id: vector for passage, vector in zip(new, embedded, strict=True)}
            batch = self._batch(caller, target, resolved.embedder, passages, drafts, key, default)
            return await self._ledger.record_insert(organization_id, batch, key), vectors

        recorded, vectors = await _retry_while_switching(record)
        stored: dict[str, Passage] = {}
        if recorded.operation is not None:
            new = recorded.operation.passages
            await self._operations.run(
                recorded.operation, [vectors[passage.id] for passage in new] if vectors else None
            )
            stored = {passage.id: passage for passage in new} if not recorded.replayed else {}
        return await self._outcomes(organization_id, recorded.entries, drafts, stored)

    async def get(self, caller: Principal, passage_id: str, *, with_embedding: bool = False) -> Passage:
        """Returns a passage. Raises PassageNotFound."""
        found = await self._read(caller.organization_id, [passage_id], with_embedding)
        if passage_id not in found:
            raise PassageNotFound(passage_id)
        return found[passage_id]

    async def update(
        self, caller: Principal, passage_id: str, draft: PassageDraft, fields: Sequence[str], key: RequestKey | None
    ) -> Passage:
        """Sets the named fields to the values of the draft; a new text is embedded.

        Raises:
            InvalidArgument: a field cannot be updated, or its value is bad.
            PassageNotFound: there is no such passage.
            PassageBusy: another replica is updating it.
            EmbedderUnavailable: the new text cannot be embedded now.
        """
        organization_id = caller.organization_id
        change = validate_update(draft, fields, self._clock.now())
        async with self._update_locks.setdefault((organization_id, passage_id), asyncio.Lock()):
            unfinished = await self._ledger.unfinished_update(organization_id, passage_id)
            if unfinished is not None:
                await self._operations.run(unfinished)

            async def record() -> tuple[UpdatePoint | None, Sequence[Vector | None]]:
                row = (await self._ledger.find(organization_id, [passage_id])).get(passage_id)
                if row is None:
                    raise PassageNotFound(passage_id)
                texts = [change.text] if "text" in fields else []
                vectors = await self._operations.embed(organization_id, row.archive_id, row.embedder, texts)
                operation_id = self._ids.new("operation")
                return await self._ledger.record_update(organization_id, operation_id, row, change, key), vectors

            operation, vectors = await _retry_while_switching(record)
            if operation is not None:
                await self._operations.run(operation, vectors or None)
        return await self.get(caller, passage_id)

    async def delete(self, caller: Principal, passage_id: str, key: RequestKey | None) -> None:
        """Deletes a passage permanently. Raises PassageNotFound if it never existed."""
        operation_id = self._ids.new("operation")
        for operation in await self._ledger.record_delete(caller.organization_id, operation_id, passage_id, key):
            await self._operations.run(operation)

    def _new_passages(
        self,
        organization_id: str,
        target: InsertTarget,
        drafts: Sequence[PassageDraft | MnemeshError],
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

    def _batch(
        self,
        caller: Principal,
        target: InsertTarget,
        embedder: str,
        passages: tuple[Passage | None, ...],
        drafts: Sequence[PassageDraft | MnemeshError],
        key: RequestKey | None,
        default: str,
    ) -> InsertBatch:
        organization_id = caller.organization_id
        operation_id = self._ids.new("operation")
        if key is not None:
            operation_id = derive_id("operation", organization_id, key.request_id)
        return InsertBatch(
            operation_id=operation_id,
            target=target,
            embedder=embedder,
            default=DefaultArchive(default, self._embedders.get(default).dimension, caller.subject_id),
            passages=passages,
            caller_ids=frozenset(draft.id for draft in drafts if isinstance(draft, PassageDraft) and draft.id),
        )

    async def _outcomes(
        self,
        organization_id: str,
        entries: Sequence[InsertEntry],
        drafts: Sequence[PassageDraft | MnemeshError],
        stored: dict[str, Passage],
    ) -> list[InsertOutcome]:
        missing = [entry.passage_id for entry in entries if entry.passage_id and entry.passage_id not in stored]
        if missing:
            stored = {**stored, **await self._read(organization_id, missing)}
        outcomes: list[InsertOutcome] = []
        for entry, draft in zip(entries, drafts, strict=True):
            if isinstance(draft, MnemeshError):
                outcomes.append(InsertOutcome(failure=_failure(draft)))
            elif entry.reason:
                outcomes.append(InsertOutcome(failure=_failure(PassageExists(draft.id or ""))))
            elif entry.passage_id in stored:
                outcomes.append(InsertOutcome(passage=stored[entry.passage_id], duplicate=entry.duplicate))
            else:
                outcomes.append(InsertOutcome(deleted_id=entry.passage_id, duplicate=entry.duplicate))
        return outcomes

    async def _read(
        self, organization_id: str, passage_ids: Sequence[str], with_embedding: bool = False
    ) -> dict[str, Passage]:
        rows = await self._ledger.find(organization_id, passage_ids)
        found: dict[str, Passage] = {}
        for embedder in {row.embedder for row in rows.values()}:
            points = [row.point_id for row in rows.values() if row.embedder == embedder]
            passages = await self._passages.get(embedder, points, with_embedding=with_embedding)
            found.update((passage.id, passage) for passage in passages.values())
        return found


async def _retry_while_switching(record: Callable[[], Awaitable[T]]) -> T:
    """Records a write; repeats while the archive is switching to another embedder."""
    waited = 0.0
    while True:
        try:
            return await record()
        except ArchiveReembedding:
            if waited >= SWITCH_SECONDS:
                raise
        await asyncio.sleep(SWITCH_POLL_SECONDS)
        waited += SWITCH_POLL_SECONDS


def _failure(error: MnemeshError) -> InsertFailure:
    return InsertFailure(error.reason, error.message, error.metadata)
