"""The use cases that write passages, and read one: each recorded in SQL first, carried out in the index, settled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar
from weakref import WeakValueDictionary

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import InvalidArgument, MnemeshError
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, derive_id, require_id
from mnemesh_kit.principal import Principal
from mnemesh_retrieval.embedder import Vector

from mnemesh_archival.errors import ArchiveMoved, PassageExists, PassageNotFound
from mnemesh_archival.model.operations import UpdatePoint
from mnemesh_archival.model.passages import (
    InsertFailure,
    InsertOutcome,
    InsertTarget,
    Passage,
    PassageChange,
    PassageDraft,
    PassageSource,
    checked_tags,
    checked_text,
)
from mnemesh_archival.model.texts import checked_free, checked_metadata
from mnemesh_archival.store.base import (
    DefaultArchive,
    InsertBatch,
    InsertEntry,
    PassageLedger,
    PassageStore,
    RecordedInsert,
)
from mnemesh_archival.usecases.operation_worker import OperationWorker
from mnemesh_archival.vectors.embedders import Embedders

UPDATABLE = frozenset({"text", "tags", "metadata"})
MAX_FILE_NAME = 1_000
MOVE_SECONDS = 5.0
"""How long a write waits for its archive to change its embedder: that moment is over sooner, or given up."""
MOVE_POLL_SECONDS = 0.02
T = TypeVar("T")


class PassageService:
    """Passages of the caller's organization."""

    def __init__(
        self,
        ledger: PassageLedger,
        passages: PassageStore,
        finisher: OperationWorker,
        embedders: Embedders,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._ledger = ledger
        self._passages = passages
        self._finisher = finisher
        self._embedders = embedders
        self._clock = clock
        self._ids = ids
        self._updating: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def insert(
        self,
        caller: Principal,
        target: InsertTarget,
        drafts: Sequence[PassageDraft | MnemeshError],
        key: RequestKey | None,
    ) -> list[InsertOutcome]:
        """Store a batch. A draft that could not even be read comes as its error.

        Raises the first error if no passage can be stored.
        """
        organization_id = caller.organization_id
        checked = [_checked(draft, place) for place, draft in enumerate(drafts)]
        if all(isinstance(each, MnemeshError) for each in checked):
            raise next(each for each in checked if isinstance(each, MnemeshError))
        placed = self._placed(organization_id, target, checked, key)

        async def record() -> tuple[RecordedInsert, dict[str, Vector | None] | None]:
            place = await self._ledger.insert_target(organization_id, target, self._embedders.default, key)
            vectors = None
            if not place.known:
                given = [passage for passage in placed if passage is not None]
                texts = [passage.text for passage in given]
                embedded = await self._finisher.vectors(organization_id, place.archive_id, place.embedder, texts)
                vectors = {passage.id: vector for passage, vector in zip(given, embedded, strict=True)}
            insert = self._insert(caller, target, place.embedder, placed, drafts, key)
            return await self._ledger.record_insert(organization_id, insert, key), vectors

        recorded, vectors = await _once_open(record)
        stored: dict[str, Passage] = {}
        if recorded.operation is not None:
            mine = recorded.operation.passages
            await self._finisher.finish(
                recorded.operation, [vectors[passage.id] for passage in mine] if vectors else None
            )
            stored = {passage.id: passage for passage in mine} if not recorded.replayed else {}
        return await self._outcomes(organization_id, recorded.entries, checked, stored)

    async def get(self, caller: Principal, passage_id: str, *, with_embedding: bool = False) -> Passage:
        """One passage."""
        found = await self._read(caller.organization_id, [passage_id], with_embedding)
        if passage_id not in found:
            raise PassageNotFound(passage_id)
        return found[passage_id]

    async def update(
        self, caller: Principal, passage_id: str, draft: PassageDraft, fields: Sequence[str], key: RequestKey | None
    ) -> Passage:
        """Set the named fields; a new text is embedded anew."""
        organization_id = caller.organization_id
        if not fields or not UPDATABLE.issuperset(fields):
            raise InvalidArgument(f"update_mask must name some of {', '.join(sorted(UPDATABLE))}.", field="update_mask")
        change = PassageChange(
            fields=frozenset(fields),
            updated_at=self._clock.now(),
            text=checked_text(draft.text, "passage.text") if "text" in fields else "",
            tags=checked_tags(draft.tags, "passage.tags") if "tags" in fields else (),
            metadata=checked_metadata(draft.metadata, "passage.metadata") if "metadata" in fields else None,
        )
        async with self._updating.setdefault((organization_id, passage_id), asyncio.Lock()):
            left_over = await self._ledger.unfinished_update(organization_id, passage_id)
            if left_over is not None:
                await self._finisher.finish(left_over)

            async def record() -> tuple[UpdatePoint | None, Sequence[Vector | None]]:
                row = (await self._ledger.find(organization_id, [passage_id])).get(passage_id)
                if row is None:
                    raise PassageNotFound(passage_id)
                texts = [change.text] if "text" in fields else []
                vectors = await self._finisher.vectors(organization_id, row.archive_id, row.embedder, texts)
                return await self._ledger.record_update(
                    organization_id, self._ids.new("operation"), row, change, key
                ), vectors

            operation, vectors = await _once_open(record)
            if operation is not None:
                await self._finisher.finish(operation, vectors or None)
        return await self.get(caller, passage_id)

    async def delete(self, caller: Principal, passage_id: str, key: RequestKey | None) -> None:
        """Delete a passage for ever."""
        name = self._ids.new("operation")
        for operation in await self._ledger.record_delete(caller.organization_id, name, passage_id, key):
            await self._finisher.finish(operation)

    def _placed(
        self,
        organization_id: str,
        target: InsertTarget,
        drafts: Sequence[PassageDraft | MnemeshError],
        key: RequestKey | None,
    ) -> tuple[Passage | None, ...]:
        now = self._clock.now()
        placed: list[Passage | None] = []
        for ordinal, draft in enumerate(drafts):
            if isinstance(draft, MnemeshError):
                placed.append(None)
                continue
            made = (
                derive_id("passage", organization_id, key.request_id, str(ordinal)) if key else self._ids.new("passage")
            )
            source = draft.source
            if source is PassageSource.UNSPECIFIED:
                source = PassageSource.AGENT if target.agent_id else PassageSource.OWNER
            placed.append(
                Passage(
                    id=draft.id or made,
                    archive_id="",
                    text=draft.text,
                    tags=draft.tags,
                    metadata=draft.metadata,
                    source=source,
                    agent_id=draft.agent_id or target.agent_id,
                    file_id=draft.file_id,
                    folder_id=draft.folder_id,
                    file_name=draft.file_name,
                    chunk_index=draft.chunk_index,
                    # Microseconds apart, so that lists keep the order of the batch.
                    created_at=draft.created_at or now + timedelta(microseconds=ordinal),
                    updated_at=now,
                )
            )
        return tuple(placed)

    def _insert(
        self,
        caller: Principal,
        target: InsertTarget,
        embedder: str,
        placed: tuple[Passage | None, ...],
        drafts: Sequence[PassageDraft | MnemeshError],
        key: RequestKey | None,
    ) -> InsertBatch:
        default = self._embedders.default
        organization_id = caller.organization_id
        return InsertBatch(
            operation_id=derive_id("operation", organization_id, key.request_id) if key else self._ids.new("operation"),
            target=target,
            embedder=embedder,
            default=DefaultArchive(default, self._embedders.get(default).dimension, caller.subject_id),
            passages=placed,
            given_ids=frozenset(draft.id for draft in drafts if isinstance(draft, PassageDraft) and draft.id),
        )

    async def _outcomes(
        self,
        organization_id: str,
        entries: Sequence[InsertEntry],
        drafts: Sequence[PassageDraft | MnemeshError],
        stored: dict[str, Passage],
    ) -> list[InsertOutcome]:
        unread = [entry.passage_id for entry in entries if entry.passage_id and entry.passage_id not in stored]
        if unread:
            stored = {**stored, **await self._read(organization_id, unread)}
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
            read = await self._passages.get(embedder, points, with_embedding=with_embedding)
            found.update((passage.id, passage) for passage in read.values())
        return found


async def _once_open(record: Callable[[], Awaitable[T]]) -> T:
    """Record a write; again, where the archive is changing its embedder at that moment, until it has."""
    waited = 0.0
    while True:
        try:
            return await record()
        except ArchiveMoved:
            if waited >= MOVE_SECONDS:
                raise
        await asyncio.sleep(MOVE_POLL_SECONDS)
        waited += MOVE_POLL_SECONDS


def _checked(draft: PassageDraft | MnemeshError, place: int) -> PassageDraft | MnemeshError:
    """The draft with its tags made unique, or the error that names its field."""
    if isinstance(draft, MnemeshError):
        return draft
    where = f"passages[{place}]"
    try:
        if draft.id is not None:
            require_id(draft.id, "passage", f"{where}.id")
        for value, prefix, name in (
            (draft.agent_id, "agent", "agent_id"),
            (draft.file_id, "file", "file_id"),
            (draft.folder_id, "source", "folder_id"),
        ):
            if value is not None:
                require_id(value, prefix, f"{where}.{name}")
        if draft.file_name is not None:
            checked_free(draft.file_name, f"{where}.file_name", MAX_FILE_NAME, controls="")
        checked_metadata(draft.metadata, f"{where}.metadata")
        checked_text(draft.text, f"{where}.text")
        return replace(draft, tags=checked_tags(draft.tags, f"{where}.tags"))
    except InvalidArgument as error:
        return error


def _failure(error: MnemeshError) -> InsertFailure:
    return InsertFailure(error.reason, error.message, error.metadata)
