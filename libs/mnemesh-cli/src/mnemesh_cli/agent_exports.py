"""Agents as JSON records in a file: export, and import as new agents."""

import asyncio
import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message
from mnemesh.agents.v1 import agent_records_pb2, agents_service_pb2, conversations_pb2
from mnemesh.archival.v1 import archives_pb2, archives_service_pb2, passages_service_pb2
from mnemesh.archival.v1 import passages_service_pb2 as pb
from mnemesh.blocks.v1 import blocks_service_pb2
from mnemesh.recall.v1 import traces_pb2, traces_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_cli.trace_files.directory import (
    Line,
    TraceDirectory,
    encode_json,
    line_error,
    parse_line,
    sync_directory,
)
from mnemesh_client.agent import Agent
from mnemesh_client.inputs import present_fields
from mnemesh_kit.errors import DeadlineExceeded, InvalidArgument, Unavailable
from mnemesh_kit.ids import derive_id

if TYPE_CHECKING:
    from mnemesh_client.mnemesh import Mnemesh

M = TypeVar("M", bound=Message)

RECORDS: Final = "records.jsonl"
"""The name of the file in a directory."""
_SECONDS: Final = 6 * 3600.0
_RECORD_BATCH_BYTES: Final = 500_000
_ATTEMPTS: Final = 5

OnCount = Callable[[int], None]
"""Receives the number of records that were moved."""
_REASONS: Final[dict[int, str]] = {
    pb.VECTOR_USE_OTHER_EMBEDDER: "their archive has another embedder",
    pb.VECTOR_USE_OTHER_DIMENSION: "the embedder of their archive has another dimension",
}


def to_line(message: Message) -> Line:
    """Returns a message as a JSON object."""
    return dict(MessageToDict(message, preserving_proto_field_name=True))


def from_line(line: Mapping[str, Any], message: M, name: str) -> M:
    """Returns the message of a JSON object. Unknown keys are ignored.

    Raises:
        InvalidArgument: a value does not fit its field.
    """
    try:
        return ParseDict(dict(line), message, ignore_unknown_fields=True)
    except ParseError as error:
        raise InvalidArgument(f"{name}: {error}", field=name) from error


async def export_records(
    mnemesh: "Mnemesh", agent_id: str, path: Path, on_count: OnCount, *, with_vectors: bool = False
) -> int:
    """Writes the records of an agent to a file, and returns their number. A crash leaves the old file or the new one.

    Args:
        mnemesh: the client.
        agent_id: the agent.
        path: the file.
        on_count: receives the progress.
        with_vectors: also write the vectors of passages.

    Raises:
        NotFound: there is no such agent.
        Unavailable: a service cannot be reached.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new, count = path.with_name(f".{path.name}.new"), 0
    request = agents_service_pb2.ExportAgentRequest(agent_id=agent_id, include_vectors=with_vectors)
    with new.open("w", encoding="utf-8") as file:
        async for part in mnemesh.agents.stub.ExportAgent(request, timeout=_SECONDS):
            for record in part.records:
                file.write(f"{encode_json(to_line(record))}\n")
            count += len(part.records)
            on_count(count)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_directory(path.parent)
    return count


def count_records(path: Path) -> tuple[int, str]:
    """Checks every line of a file. Returns the number of records, and an id that the same content always has.

    Raises:
        InvalidArgument: the file cannot be read, or a line is not a record.
    """
    count, digest = 0, hashlib.sha256()
    for record in read_records(path):
        count += 1
        digest.update(record.SerializeToString(deterministic=True))
    return count, derive_id("request", "records", digest.hexdigest())


def read_records(path: Path) -> Iterator[agent_records_pb2.AgentRecord]:
    """Yields the records of a file. Raises InvalidArgument as `count_records`."""
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                if not text.strip():
                    continue
                line = parse_line(path, number, text)
                try:
                    yield from_line(line, agent_records_pb2.AgentRecord(), path.name)
                except InvalidArgument as error:
                    raise line_error(path, number, error.message) from error
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}.", field=path.name) from error


async def import_records(
    mnemesh: "Mnemesh", path: Path, request_id: str, on_count: OnCount, *, model: str | None = None
) -> agents_service_pb2.ImportAgentResponse:
    """Creates an agent from a file. A repeat with the same `request_id` continues an interrupted import.

    Args:
        mnemesh: the client.
        path: the file.
        request_id: identifies the import.
        on_count: receives the progress.
        model: the model of the agent; None is the exported one.

    Raises:
        InvalidArgument: the server refuses a record. Metadata: record, field.
        Unavailable: a service cannot be reached, also after several attempts.
    """
    options = agents_service_pb2.ImportOptions(request_id=request_id, keep_ids=True, **present_fields(model=model))
    for attempt in range(_ATTEMPTS):
        try:
            return await mnemesh.agents.stub.ImportAgent(_requests(path, options, on_count), timeout=_SECONDS)
        except (Unavailable, DeadlineExceeded):
            if attempt == _ATTEMPTS - 1:
                raise
            await asyncio.sleep(2.0**attempt)
    raise AssertionError("the last attempt returns or raises")


def _requests(
    path: Path, options: agents_service_pb2.ImportOptions, on_count: OnCount
) -> Iterator[agents_service_pb2.ImportAgentRequest]:
    yield agents_service_pb2.ImportAgentRequest(options=options)
    batch = agents_service_pb2.ImportAgentRequest()
    count = size = 0
    for record in read_records(path):
        length = record.ByteSize()
        if batch.records and size + length > _RECORD_BATCH_BYTES:
            yield batch
            on_count(count)
            batch, size = agents_service_pb2.ImportAgentRequest(), 0
        batch.records.append(record)
        size += length
        count += 1
    yield batch
    on_count(count)


def vector_report(uses: Mapping[int, int], without: Collection[str] = ()) -> dict[str, Any]:
    """Returns the numbers of passages for programs: with kept vectors, and embedded again with the reason.

    Args:
        uses: the number of passages by VectorUse.
        without: why passages came without a vector, if that is known.
    """
    reasons = {**_REASONS, pb.VECTOR_USE_UNSPECIFIED: "; ".join(sorted(without)) or "they came without a vector"}
    again = [{"passages": uses[use], "reason": reason} for use, reason in reasons.items() if uses.get(use)]
    return {"kept": uses.get(pb.VECTOR_USE_KEPT, 0), "embedded_again": again}


def vector_lines(uses: Mapping[int, int], without: Collection[str] = ()) -> list[str]:
    """Returns what `vector_report` has as lines; none if no passage was created."""
    if not any(uses.values()):
        return []
    report = vector_report(uses, without)
    again = [f"embedded again: {each['passages']} passages: {each['reason']}" for each in report["embedded_again"]]
    return [f"vectors kept: {report['kept']} passages", *again]


_BATCH: Final = 500
_BATCH_BYTES: Final = 2_000_000

_CONVERSATION_OUTPUT_ONLY: Final = (
    "id", "is_default", "archived", "isolated_block_ids", "forked_from_id", "message_ids", "last_message_time",
    "create_time", "update_time",
)  # fmt: skip

_OF_BLOCK: Final = (
    "id",
    "revision",
    "identity_ids",
    "created_for_agent_id",
    "create_time",
    "update_time",
    "provenance",
)


@dataclass(slots=True)
class Exported:
    """The records of an agent that an import into an existing agent reads."""

    agent_id: str | None = None
    blocks: list[agent_records_pb2.BlockRecord] = field(default_factory=list)
    conversations: list[conversations_pb2.Conversation] = field(default_factory=list)
    archives: list[archives_pb2.Archive] = field(default_factory=list)
    passages: list[archives_pb2.Passage] = field(default_factory=list)
    summaries: dict[str, message_pb2.Message] = field(default_factory=dict)
    """By id."""

    @classmethod
    def of(cls, path: Path) -> Self:
        """Reads the records of a file; none if the file does not exist. Raises InvalidArgument as `count_records`."""
        found = cls()
        for record in read_records(path) if path.exists() else ():
            match record.WhichOneof("record"):
                case "agent":
                    found.agent_id = record.agent.id
                case "block":
                    found.blocks.append(record.block)
                case "conversation":
                    found.conversations.append(record.conversation)
                case "archive":
                    found.archives.append(record.archive)
                case "passage":
                    found.passages.append(record.passage.passage)
                case "message" if record.message.role == message_pb2.ROLE_SUMMARY:
                    found.summaries[record.message.id] = record.message
        return found


async def restore_passages(mnemesh: "Mnemesh", agent: Agent, exported: Exported) -> tuple[int, int, list[str]]:
    """Creates the archives and passages of an export that the agent does not have.

    An archive is known by its id or its name, and the archive that was created for an agent by that. A passage is known
    by its id, or by the id that is derived from it for this agent.

    Returns:
        The number of new archives, the number of new passages, and the refusals of passages.
    """
    if not exported.archives:
        return 0, 0, []
    own = [archive async for archive in mnemesh.archives.list(agent_id=agent.id, order="asc")]
    existing = {passage.id async for passage in mnemesh.passages.list(agent_id=agent.id)} if own else set()
    created, stored = 0, 0
    notes: list[str] = []
    for archive in exported.archives:
        target = next((InsertTarget(archive_id=each.id) for each in own if _is_same(each, archive)), None)
        if target is None:
            target = await _create(mnemesh, agent, archive)
            created += 1
        new = [
            _copy(passage, derive_id("passage", agent.id, passage.id))
            for passage in exported.passages
            if passage.archive_id == archive.id
            and existing.isdisjoint((passage.id, derive_id("passage", agent.id, passage.id)))
        ]
        for batch in _batches(new):
            request = target.request(batch)
            for result in (await mnemesh.passages.stub.InsertPassages(request)).results:
                if result.WhichOneof("result") == "failure":
                    notes.append(f"A passage was refused: {result.failure.message}")
                else:
                    stored += 1
    return created, stored, notes


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertTarget:
    """The target of an insert: an archive, or the archive that archival creates for an agent with an embedder."""

    archive_id: str | None = None
    agent_id: str | None = None
    embedder: str = ""

    def request(self, passages: Sequence[archives_pb2.Passage]) -> passages_service_pb2.InsertPassagesRequest:
        """Returns the request that inserts passages. It is the same for the same passages."""
        return passages_service_pb2.InsertPassagesRequest(
            request_id=derive_id("request", *(passage.id for passage in passages)),
            **present_fields(archive_id=self.archive_id, agent_id=self.agent_id),
            default_embedder=self.embedder,
            passages=passages,
        )


def _is_same(own: archives_pb2.Archive, given: archives_pb2.Archive) -> bool:
    if given.HasField("created_for_agent_id") and own.HasField("created_for_agent_id"):
        return True
    return own.id == given.id or own.name == given.name


async def _create(mnemesh: "Mnemesh", agent: Agent, given: archives_pb2.Archive) -> InsertTarget:
    if given.HasField("created_for_agent_id"):
        return InsertTarget(agent_id=agent.id, embedder=given.embedder)
    archive = archives_pb2.Archive(
        name=given.name, embedder=given.embedder, deduplicate=given.deduplicate,
        description=given.description if given.HasField("description") else None,
        metadata=given.metadata if given.HasField("metadata") else None,
    )  # fmt: skip
    request = archives_service_pb2.CreateArchiveRequest(
        request_id=derive_id("request", agent.id, given.id), archive=archive, agent_ids=[agent.id]
    )
    return InsertTarget(archive_id=(await mnemesh.archives.stub.CreateArchive(request)).archive.id)


def _copy(passage: archives_pb2.Passage, passage_id: str) -> archives_pb2.Passage:
    copy = archives_pb2.Passage()
    copy.CopyFrom(passage)
    for name in ("archive_id", "agent_id", "update_time"):
        copy.ClearField(name)
    copy.id = passage_id
    return copy


def _batches(passages: Sequence[archives_pb2.Passage]) -> Iterator[list[archives_pb2.Passage]]:
    batch: list[archives_pb2.Passage] = []
    size = 0
    for passage in passages:
        if batch and (len(batch) == _BATCH or size + passage.ByteSize() > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(passage)
        size += passage.ByteSize()
    if batch:
        yield batch


class ConversationImport:
    """Maps the conversations of an export to those of an agent."""

    def __init__(self, mnemesh: "Mnemesh", agent: Agent, exported: Exported) -> None:
        self._mnemesh = mnemesh
        self._agent = agent
        self._exported = exported
        self._ids: dict[str, str] = {}

    async def create_missing(self, records: Sequence[traces_service_pb2.TraceRecord]) -> int:
        """Creates the conversations that the agent does not have, and returns their number.

        A conversation is known by its id, or by the traces that an earlier import assigned to it. One without traces is
        not created.
        """
        created = 0
        known = {} if not self._exported.conversations else await self._find_known(records)
        used = {record.raw_trace.conversation_id for record in records}
        for given in self._exported.conversations:
            own_id = self._agent.proto.default_conversation_id if given.is_default else known.get(given.id)
            if own_id is None and given.id in used:
                own_id = await self._create(given)
                created += 1
            if own_id is None:
                continue
            self._ids[given.id] = own_id
        return created

    def mapped(self, records: Iterable[traces_service_pb2.TraceRecord]) -> list[traces_service_pb2.TraceRecord]:
        """Returns the records with the agent and its conversations in place of the exported ones.

        The summaries at the head of the exported windows come first, as snapshots.
        """
        return [*self._summaries(), *map(self._mapped, records)]

    def _summaries(self) -> Iterator[traces_service_pb2.TraceRecord]:
        for given in self._exported.conversations:
            head = next((id_ for id_ in given.message_ids if id_ in self._exported.summaries), None)
            if given.id in self._ids and head is not None:
                summary = self._exported.summaries[head]
                snapshot = traces_pb2.TraceSnapshot(conversation_id=self._ids[given.id], messages=[summary])
                yield traces_service_pb2.TraceRecord(snapshot=snapshot)

    def _mapped(self, record: traces_service_pb2.TraceRecord) -> traces_service_pb2.TraceRecord:
        kind = record.WhichOneof("record")
        holder: Any = record.raw_trace if kind == "raw_trace" else getattr(record, kind or "episode").source
        if holder.conversation_id in self._ids:
            holder.conversation_id = self._ids[holder.conversation_id]
        if kind != "raw_trace" and holder.agent_id == self._exported.agent_id:
            holder.agent_id = self._agent.id
        return record

    async def _find_known(self, records: Sequence[traces_service_pb2.TraceRecord]) -> dict[str, str]:
        """Returns the agent's conversation for each exported one that it has."""
        known = {item.id: item.id async for item in self._mnemesh.conversations.list(agent_id=self._agent.id)}
        if all(given.id in known for given in self._exported.conversations):
            return known
        exported = {record.raw_trace.id: record.raw_trace.conversation_id for record in records}
        async for record in self._mnemesh.traces.export(self._agent.id, kinds=("raw_trace",)):
            trace = record.raw_trace
            if trace.id in exported and trace.conversation_id in known:
                known.setdefault(exported[trace.id], trace.conversation_id)
        return known

    async def _create(self, given: conversations_pb2.Conversation) -> str:
        new = conversations_pb2.Conversation()
        new.CopyFrom(given)
        for name in _CONVERSATION_OUTPUT_ONLY:
            new.ClearField(name)
        new.agent_id = self._agent.id
        request_id = derive_id("request", self._agent.id, given.id)
        created = await self._mnemesh.conversations.create(new, request_id=request_id)
        own = [each.block for each in self._exported.blocks if each.conversation_id == given.id]
        by_label = {block.label: block.value for block in own}
        for block_id in created.isolated_block_ids:
            block = await self._mnemesh.blocks.get(block_id)
            if block.label in by_label and block.value != by_label[block.label]:
                await self._mnemesh.blocks.update(block_id, value=by_label[block.label])
        return created.id


@dataclass(slots=True)
class ImportCounts:
    """The number of imported items. Items that existed are not counted, except for `skipped`, which counts records."""

    traces: int = 0
    turns: int = 0
    episodes: int = 0
    facts: int = 0
    skipped: int = 0
    blocks: int = 0
    conversations: int = 0
    archives: int = 0
    passages: int = 0
    notes: list[str] = field(default_factory=list)
    """The parts that were not imported, with the reasons."""


class AgentImport:
    """The import of one directory. A repeated import changes nothing."""

    def __init__(self, mnemesh: "Mnemesh", directory: Path) -> None:
        """Reads the files.

        Raises:
            InvalidArgument: a line is malformed.
        """
        self._mnemesh = mnemesh
        self._directory = directory
        self._exported = Exported.of(directory / RECORDS)
        self._records = list(TraceDirectory(directory).records())
        self.counts = ImportCounts()

    async def run(self, key: str | None, *, window: bool = True) -> Agent:
        """Imports the directory, and returns the agent.

        Args:
            key: the id or name of the agent to import into; None is the agent that the directory names.
            window: whether traces that are not archived are added to context windows.

        Raises:
            NotFound: there is no such agent.
        """
        agent = await self._mnemesh.agents.find(key or self._directory.name)
        await self._restore_blocks(agent)
        conversations = ConversationImport(self._mnemesh, agent, self._exported)
        self.counts.conversations = await conversations.create_missing(self._records)
        records = conversations.mapped(self._records)
        result = await self._mnemesh.traces.import_(agent.id, records, extend_window=window)
        self.counts.traces, self.counts.turns = result.imported_traces, result.created_turns
        self.counts.episodes, self.counts.facts = result.imported_episodes, result.imported_facts
        self.counts.skipped = result.skipped_records
        self.counts.archives, self.counts.passages, refused = await restore_passages(
            self._mnemesh, agent, self._exported
        )
        self.counts.notes += refused
        return agent

    async def _restore_blocks(self, agent: Agent) -> None:
        """Creates the blocks whose labels the agent does not have. Other blocks are kept."""
        blocks = [each.block for each in self._exported.blocks if not each.conversation_id]
        existing = {block.label: block for block in (await agent.memory()).blocks} if blocks else {}
        for block in blocks:
            own = existing.get(block.label)
            if own is None:
                request = blocks_service_pb2.CreateBlockRequest(
                    request_id=derive_id("request", agent.id, block.id), block=_without(block, _OF_BLOCK),
                    agent_ids=[agent.id],
                )  # fmt: skip
                await self._mnemesh.blocks.stub.CreateBlock(request)
                self.counts.blocks += 1
            elif own.value != block.value:
                self.counts.notes.append(f"The block {block.label} of the agent has another text. It was kept.")


def _without(message: Any, names: Iterable[str]) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    for name in names:
        copy.ClearField(name)
    return copy
