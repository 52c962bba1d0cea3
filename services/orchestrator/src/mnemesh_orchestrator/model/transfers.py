"""Exports and imports of whole agents: records, options, ids and reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import derive_id, is_id
from mnemesh_kit.text import require_text

from mnemesh_orchestrator.model.conversations import default_conversation_id

FORMAT_VERSION: Final = 1
MAX_SKIPPED: Final = 1_000
"""The largest number of skipped records in a report."""
MAX_REQUEST_ID: Final = 200


class RecordType(IntEnum):
    """The types of records, in the order in which a stream has them."""

    HEADER = 1
    AGENT = 2
    IDENTITY = 3
    TOOL = 4
    FOLDER = 5
    FILE = 6
    BLOCK = 7
    BLOCK_REVISION = 8
    CONVERSATION = 9
    RUN = 10
    STEP = 11
    MESSAGE = 12
    RAW_TRACE = 13
    EPISODE = 14
    FACT = 15
    ARCHIVE = 16
    PASSAGE = 17
    GROUP = 18
    SCHEDULE = 19
    END = 30


FRAME: Final = frozenset({RecordType.HEADER, RecordType.AGENT, RecordType.END})
"""The types that every stream has."""
DEFAULT_TYPES: Final = frozenset(RecordType) - {RecordType.RAW_TRACE}
"""The types of an export that names none."""
HISTORY: Final = frozenset({RecordType.RUN, RecordType.STEP, RecordType.MESSAGE, RecordType.RAW_TRACE})
"""The types that `strip_messages` leaves out."""
SHARED: Final = frozenset(
    {RecordType.IDENTITY, RecordType.TOOL, RecordType.FOLDER, RecordType.BLOCK, RecordType.ARCHIVE}
)
"""The types of things that exist beside the agent, so that an import may find them."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record. The body is a type of the model for what the orchestrator stores, otherwise the adapter's own."""

    type: RecordType
    id: str
    body: Any
    size: int = 0
    """Bytes, for the size of batches."""
    index: int = 0
    """The 1-based position in the stream of an import."""


@dataclass(frozen=True, slots=True)
class Window:
    """The context window of a conversation record: the ids of its messages, in order."""

    conversation: Any
    message_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportScope:
    """What the adapters need to know of an agent to export their records."""

    agent_id: str
    conversation_ids: tuple[str, ...] = ()
    """The conversations with blocks of their own."""
    memory_scope: str | None = None
    tool_ids: tuple[str, ...] = ()
    with_vectors: bool = False


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The options of an import. See ImportOptions of the contract."""

    request_id: str
    keep_ids: bool = False
    id_namespace: str | None = None
    name: str | None = None
    model: str | None = None
    embedder: str | None = None
    project_id: str | None = None
    append_copy_suffix: bool = False
    strip_messages: bool = False
    override_existing_tools: bool = False
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    types: frozenset[RecordType] = frozenset()

    def imports(self, kind: RecordType) -> bool:
        """Returns whether records of that type are imported."""
        if kind in FRAME:
            return True
        return not (self.strip_messages and kind in HISTORY) and (not self.types or kind in self.types)


def require_options(options: ImportOptions) -> ImportOptions:
    """Returns the options if their texts can be stored. Raises InvalidArgument."""
    require_text(options.request_id, "options.request_id", min_chars=1, max_chars=MAX_REQUEST_ID)
    if options.id_namespace is not None:
        require_text(options.id_namespace, "options.id_namespace", min_chars=1, max_chars=MAX_REQUEST_ID)
    return options


class IdMap:
    """The ids of an import: those of the records, or new ones that are derived from them."""

    def __init__(self, namespace: str, *, kept: bool, known: Mapping[str, str]) -> None:
        """`known` are the ids of things that exist under another id, and of the agent."""
        self._namespace = namespace
        self.kept = kept
        self.known = dict(known)

    def of(self, prefix: str, id_: str) -> str:
        """Returns the id in this mesh. An id that is not well-formed always gets a new one."""
        if id_ in self.known:
            return self.known[id_]
        if self.kept and is_id(id_, prefix):
            return id_
        return derive_id(prefix, self._namespace, id_)

    def optional(self, prefix: str, id_: str | None) -> str | None:
        """Returns the id in this mesh, or None for None."""
        return None if id_ is None else self.of(prefix, id_)

    def other(self, id_: str) -> str:
        """Returns the id of something that may not be part of the import: it stays unless it is known."""
        return self.known.get(id_, id_)

    def set_agent(self, former_id: str, agent_id: str) -> None:
        """Maps the agent and its default conversation."""
        self.known[former_id] = agent_id
        self.known[default_conversation_id(former_id)] = default_conversation_id(agent_id)

    @property
    def changed(self) -> dict[str, str]:
        """The known ids that differ."""
        return {before: after for before, after in self.known.items() if before != after}


@dataclass(frozen=True, slots=True)
class ImportTarget:
    """The agent that an import creates, for the adapters."""

    agent_id: str
    ids: IdMap
    options: ImportOptions
    planned: frozenset[str] = frozenset()
    """The ids of records of shared things that this import creates."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record that was not imported."""

    index: int
    type: RecordType
    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an adapter did with a batch. Records that are neither existing nor skipped were created."""

    existing: int = 0
    skipped: tuple[tuple[Record, str], ...] = ()
    notes: tuple[tuple[Record, str], ...] = ()
    """Records that were imported with another value, and why."""
    vector_uses: Mapping[int, int] = field(default_factory=dict)
    """The numbers of created passages by what became of their vectors; the keys are numbers of archival's VectorUse."""


@dataclass(slots=True)
class Counts:
    """The numbers of records of one type."""

    created: int = 0
    existing: int = 0
    skipped: int = 0


@dataclass(slots=True)
class ImportReport:
    """What an import did."""

    agent_id: str = ""
    kept_ids: bool = False
    counts: dict[int, Counts] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    vector_uses: dict[int, int] = field(default_factory=dict)
    """See Outcome.vector_uses."""

    def add(self, kind: RecordType, records: Sequence[Record], outcome: Outcome) -> None:
        """Adds the outcome of a batch."""
        self.of(kind).created += len(records) - outcome.existing - len(outcome.skipped)
        self.of(kind).existing += outcome.existing
        for record, reason in outcome.skipped:
            self.skip(record, reason)
        for record, reason in outcome.notes:
            self.note(record, record.id, reason)
        for use, count in outcome.vector_uses.items():
            self.vector_uses[use] = self.vector_uses.get(use, 0) + count

    def skip(self, record: Record, reason: str) -> None:
        self.of(record.type).skipped += 1
        self.note(record, record.id, reason)

    def note(self, record: Record, id_: str, reason: str) -> None:
        """Adds a part of a record that was not imported."""
        if len(self.skipped) < MAX_SKIPPED:
            self.skipped.append(Skipped(record.index, record.type, id_, reason))

    def of(self, kind: RecordType) -> Counts:
        return self.counts.setdefault(int(kind), Counts())


@dataclass(frozen=True, slots=True)
class AgentImport:
    """The state of an import that is stored."""

    organization_id: str
    request_id: str
    fingerprint: str
    agent_id: str
    former_id: str
    kept_ids: bool
    attempt: int = 1
    planned: frozenset[str] = frozenset()
    report: ImportReport | None = None
    """Set once the import has ended."""


def require_order(before: RecordType, record: Record) -> None:
    """Refuses a record that is not in the order of the types.

    Raises:
        InvalidArgument: Metadata: record, field.
    """
    if record.type < before:
        raise InvalidArgument(
            f"Record {record.index} is of the type {record.type.name}, which must come before {before.name}.",
            field="records",
            record=str(record.index),
        )
