"""The ports of the two stores. Every method is scoped to an organization: another one's rows do not exist for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.index import Candidates, Position, SearchMode

from mnemesh_archival.model.archives import Archive, ArchiveFilter, Summary
from mnemesh_archival.model.operations import InsertPoints, Operation, UpdatePoint
from mnemesh_archival.model.passages import InsertTarget, Passage, PassageChange, PassageFilter, PassagePosition


@dataclass(frozen=True, slots=True)
class ArchiveRef:
    """What a search needs to know of an archive."""

    id: str
    embedder: str
    passage_count: int


@dataclass(frozen=True, slots=True)
class ResolvedTarget:
    """Where an insert would go now. `archive_id` is None if the agent's default archive has to be made."""

    archive_id: str | None
    embedder: str
    known: bool
    """The request took effect before: this is a replay."""


@dataclass(frozen=True, slots=True)
class DefaultArchive:
    """What a default archive is made with."""

    embedder: str
    dimension: int
    subject_id: str


@dataclass(frozen=True, slots=True)
class InsertBatch:
    """A batch to record. Failed places hold None; `passages` carry no archive yet."""

    operation_id: str
    target: InsertTarget
    embedder: str
    default: DefaultArchive
    passages: tuple[Passage | None, ...]
    given_ids: frozenset[str]
    """Those ids that came from the caller rather than from us."""


@dataclass(frozen=True, slots=True)
class RecordedInsert:
    """What became of each place of a batch: see `InsertEntry`. `operation` is the work left, if any."""

    entries: tuple[InsertEntry, ...]
    operation: InsertPoints | None
    replayed: bool


@dataclass(frozen=True, slots=True)
class InsertEntry:
    """One place of a recorded batch."""

    passage_id: str = ""
    duplicate: bool = False
    reason: str = ""
    """Set where the place failed when it was recorded: ALREADY_EXISTS. Empty id and reason: it was never valid."""


@dataclass(frozen=True, slots=True)
class PassageRow:
    """The ledger's knowledge of a passage that exists."""

    id: str
    archive_id: str
    embedder: str
    point_id: UUID
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ReembeddingJob:
    """A change of an archive's embedder that this process is at."""

    organization_id: str
    archive_id: str
    generation: int
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class PendingCopy:
    """A passage that the target does not have as it is."""

    passage_id: str
    point_id: UUID
    changes: int


@dataclass(frozen=True, slots=True)
class ErasedAgent:
    """What erasing an agent took, and the work left."""

    passages: int
    archives: int
    operations: tuple[Operation, ...]


class ArchiveStore(Protocol):
    """The registry of archives. Errors: ArchiveNotFound, AgentErased, RequestIdReused."""

    async def create_archive(
        self, organization_id: str, archive: Archive, agent_ids: Sequence[str], key: RequestKey | None
    ) -> str:
        """Make an archive and give it to the agents, at once; its id, or the first one's on a replay."""

    async def get_archive(self, organization_id: str, archive_id: str) -> Archive:
        """An archive that is not deleted."""

    async def list_archives(
        self, organization_id: str, which: ArchiveFilter, page: PageQuery, by_name: bool
    ) -> Page[Archive]:
        """A page of them, by creation time or by name."""

    async def count_archives(self, organization_id: str, which: ArchiveFilter) -> int:
        """How many."""

    async def update_archive(
        self, organization_id: str, archive: Archive, fields: frozenset[str], key: RequestKey | None
    ) -> None:
        """Set the named fields.

        Another embedder is set at once where the archive holds no passage; else a change is begun (see
        ReembeddingStore), in the place of one that was not finished. The embedder that it has ends such a change.
        """

    async def delete_archive(
        self, organization_id: str, archive_id: str, key: RequestKey | None
    ) -> tuple[Operation, ...]:
        """Delete it for everybody at once, with its passages' ledger; what is left to do. Twice is no error."""

    async def attach(self, organization_id: str, agent_id: str, archive_id: str, key: RequestKey | None) -> None:
        """Give an archive to an agent; twice is no error."""

    async def detach(self, organization_id: str, agent_id: str, archive_id: str, key: RequestKey | None) -> None:
        """Take it away; ArchiveNotFound where the agent does not hold it."""

    async def list_agents(self, organization_id: str, archive_id: str, page: PageQuery) -> Page[str]:
        """Who holds an archive, by id."""

    async def scope(self, organization_id: str, agent_id: str | None, archive_id: str | None) -> list[ArchiveRef]:
        """The archives that a filter means: an agent's, one, or all. Both given: ArchiveNotFound if it holds it not."""

    async def summary(self, organization_id: str, agent_id: str, if_revision: int | None) -> Summary:
        """Counters of an agent's archives; never a count. Unknown agents have nothing."""

    async def erase_agent(
        self, organization_id: str, agent_id: str, delete_shared: bool, key: RequestKey | None
    ) -> ErasedAgent:
        """Tombstone the agent, detach its archives, delete those nobody else holds. Twice is no error."""


class PassageLedger(Protocol):
    """Which passages there are, and what is still to be done about them in the index."""

    async def insert_target(
        self, organization_id: str, target: InsertTarget, default_embedder: str, key: RequestKey | None
    ) -> ResolvedTarget:
        """Look where an insert would go, before anything is embedded for it."""

    async def record_insert(self, organization_id: str, insert: InsertBatch, key: RequestKey | None) -> RecordedInsert:
        """Record a batch and its work in one transaction.

        Passages whose id the ledger knows are never recorded again, whether live or deleted. A replay gives the first
        entries, and its work if that is still to be done. ArchiveMoved if the archive has another embedder now, or
        gets it at this moment.
        """

    async def settle_insert(self, operation: InsertPoints) -> Operation | None:
        """Pending passages become live and are counted, once. The work to undo what was deleted meanwhile, if any."""

    async def find(self, organization_id: str, passage_ids: Sequence[str]) -> dict[str, PassageRow]:
        """Those of the passages that are live."""

    async def place(self, organization_id: str, passage_id: str) -> Position:
        """Where a passage stands in lists, also if it was deleted. PassageNotFound."""

    async def around(self, organization_id: str, point_ids: Sequence[UUID], reach: int) -> list[PassagePosition]:
        """The places of these passages, and of the live ones up to so many before and after each in its archive."""

    async def record_update(
        self, organization_id: str, operation_id: str, known: PassageRow, change: PassageChange, key: RequestKey | None
    ) -> UpdatePoint | None:
        """Record new values; None on a replay.

        PassageNotFound; PassageBusy while another update is unfinished; ArchiveMoved if the embedder is not the known
        one any more, or is not to be in a moment.
        """

    async def unfinished_update(self, organization_id: str, passage_id: str) -> Operation | None:
        """An update of that passage that was recorded and not settled."""

    async def record_delete(
        self, organization_id: str, operation_id: str, passage_id: str, key: RequestKey | None
    ) -> tuple[Operation, ...]:
        """Make the passage a tombstone; what is left to do. Twice is no error. PassageNotFound if it never was."""

    async def settle(self, operation: Operation) -> None:
        """Forget work that is done; twice is no error."""

    async def unsettled(self, *, everything: bool, limit: int = 100) -> list[Operation]:
        """Work that nobody is at any more: its claim ran out, or all there is. Claims it for the caller."""

    async def is_moving(self, organization_id: str, archive_id: str) -> bool:
        """Whether the archive's embedder is being changed."""

    async def purge_requests(self) -> int:
        """Forget request ids that are older than their promise; how many."""

    async def purge_tombstones(self, older_than: datetime) -> int:
        """Forget passages that were deleted before then; how many."""


class ReembeddingStore(Protocol):
    """Changes of embedders: which passages are copied, and the moment at which the copies begin to serve.

    A change ends when its archive is deleted, or gets yet another embedder: whoever is at it learns it from
    `next_batch` or `switch`.
    """

    async def claim(self, *, everything: bool) -> list[ReembeddingJob]:
        """Changes that nobody is at, or all there are, claimed for the caller for some time."""

    async def next_batch(self, move: ReembeddingJob, limit: int) -> list[PendingCopy] | None:
        """Some passages to copy, claiming anew; none at the moment; or None if the change is over."""

    async def mark(self, move: ReembeddingJob, copied: Sequence[PendingCopy]) -> list[UUID]:
        """Note copies, but for those that were updated meanwhile; the points of those that were deleted meanwhile."""

    async def strangers(self, move: ReembeddingJob, point_ids: Sequence[UUID]) -> list[UUID]:
        """Those of the points that are no live passages of the archive."""

    async def hold_writers(self, move: ReembeddingJob, seconds: float) -> None:
        """Let inserts and updates wait, for so long at most, so that the last passages can be copied."""

    async def switch(self, move: ReembeddingJob) -> bool:
        """Let the copies serve from now on, if nothing is left to copy. Whether the change is over."""

    async def release(self, move: ReembeddingJob, seconds: float) -> None:
        """Let somebody try again, after so many seconds."""


class PassageStore(Protocol):
    """The passages themselves, in one collection per embedder. Every write is idempotent."""

    async def insert(
        self,
        embedder: str,
        organization_id: str,
        pairs: Sequence[tuple[UUID, Passage]],
        vectors: Sequence[Vector | None],
        *,
        replace: bool = False,
    ) -> None:
        """Store passages that are not there; `replace` those that are. Without a vector, words alone find one."""

    async def update(self, embedder: str, point_id: UUID, change: PassageChange, vector: Vector | None) -> None:
        """Change a passage if it is there; `vector` belongs to a changed text."""

    async def delete(self, embedder: str, point_ids: Sequence[UUID]) -> None:
        """Take passages out."""

    async def drop_archive(self, embedder: str, organization_id: str, archive_id: str) -> None:
        """Take all passages of an archive out."""

    async def point_ids(
        self, embedder: str, organization_id: str, archive_id: str, *, after: UUID | None, limit: int
    ) -> Sequence[UUID]:
        """The points of an archive in the order of their ids."""

    async def get(self, embedder: str, point_ids: Sequence[UUID], *, with_embedding: bool) -> dict[UUID, Passage]:
        """Those that are there."""

    async def candidates(
        self,
        embedder: str,
        organization_id: str,
        archive_ids: Sequence[str] | None,
        which: PassageFilter,
        *,
        mode: SearchMode,
        text: str,
        vector: Vector | None,
        limit: int,
    ) -> Candidates:
        """The best of these archives (None: of the organization) by words, and by likeness, so many of each."""

    async def matching(
        self,
        embedder: str,
        organization_id: str,
        archive_ids: Sequence[str] | None,
        which: PassageFilter,
        point_ids: Sequence[UUID],
    ) -> set[UUID]:
        """Those of the points that a search in the same place may find."""

    async def list(
        self,
        embedder: str,
        organization_id: str,
        archive_ids: Sequence[str] | None,
        which: PassageFilter,
        *,
        words: str | None,
        ascending: bool,
        after: Position | None,
        before: Position | None,
        limit: int,
    ) -> list[tuple[Position, Passage]]:
        """Passages by creation time."""
