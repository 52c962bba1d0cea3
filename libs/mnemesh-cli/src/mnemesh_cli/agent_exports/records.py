"""The export of agents to files, and the records in them."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message
from mnemesh.agents.v1 import agent_records_pb2, agents_service_pb2, conversations_pb2
from mnemesh.archival.v1 import passages_service_pb2 as pb
from mnemesh.types.v1 import message_pb2
from mnemesh_cli.json_lines import Line, encode_json, line_error, parse_line, read_lines, sync_directory
from mnemesh_client.inputs import present_fields
from mnemesh_kit.errors import DeadlineExceeded, InvalidArgument, Unavailable
from mnemesh_kit.ids import derive_id

if TYPE_CHECKING:
    from mnemesh_client.agent import Agent
    from mnemesh_client.mnemesh import Mnemesh

M = TypeVar("M", bound=Message)

SETTINGS: Final = "agent.json"
BLOCKS: Final = "blocks.jsonl"
TOOLS: Final = "tools.jsonl"
CONVERSATIONS: Final = "conversations.jsonl"
ARCHIVES: Final = "archives.jsonl"
PASSAGES: Final = "passages.jsonl"
NAMES: Final = (SETTINGS, BLOCKS, TOOLS, CONVERSATIONS, ARCHIVES, PASSAGES)

RECORDS: Final = "records.jsonl"
"""The name of the file in a directory."""
_SECONDS: Final = 6 * 3600.0
_BATCH_BYTES: Final = 500_000
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


def write(directory: Path, name: str, lines: Iterable[Line]) -> int:
    """Replaces a file. A crash leaves the old one or the new one. Returns the number of lines."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    new, count = directory / f".{name}.new", 0
    with new.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(f"{encode_json(line)}\n")
            count += 1
        file.flush()
        os.fsync(file.fileno())
    new.replace(directory / name)
    sync_directory(directory)
    return count


def read(directory: Path, name: str) -> list[Line]:
    """Returns the lines of a file; an empty list if there is no file.

    Raises:
        InvalidArgument: the file cannot be read, or a line is not a JSON object.
    """
    return [line for _, line in read_lines(directory / name)]


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
        if batch.records and size + length > _BATCH_BYTES:
            yield batch
            on_count(count)
            batch, size = agents_service_pb2.ImportAgentRequest(), 0
        batch.records.append(record)
        size += length
        count += 1
    yield batch
    on_count(count)


@dataclass(frozen=True, slots=True)
class ExportCounts:
    """The number of exported items, and the names of the secrets whose values are not exported."""

    blocks: int
    tools: int
    conversations: int
    archives: int
    passages: int
    secrets: tuple[str, ...]


async def export_agent(
    mnemesh: "Mnemesh", agent: "Agent", directory: Path, *, with_vectors: bool = False
) -> ExportCounts:
    """Writes everything of an agent but its trace files. Values of secrets are left out.

    Args:
        mnemesh: the client.
        agent: the agent.
        directory: the directory of the files.
        with_vectors: also write the vectors of passages.

    Raises:
        Unavailable: a service cannot be reached. Files that were written before stay.
    """
    core = await mnemesh.blocks.core_memory(agent.id)
    blocks = write(directory, BLOCKS, map(to_line, core.blocks))
    tool_ids = [tool.tool_id for tool in agent.proto.tools if tool.tool_id and not tool.builtin]
    tools = write(directory, TOOLS, [to_line(await mnemesh.tools.get(tool_id)) for tool_id in tool_ids])
    conversations = [line async for line in _conversations(mnemesh, agent)]
    archives = [archive async for archive in mnemesh.archives.list(agent_id=agent.id, order="asc")]
    passages = [
        to_line(passage)
        for archive in archives
        async for passage in mnemesh.passages.list(archive_id=archive.id, order="asc", vectors=with_vectors)
    ]
    counts = ExportCounts(
        blocks=blocks,
        tools=tools,
        conversations=write(directory, CONVERSATIONS, conversations),
        archives=write(directory, ARCHIVES, map(to_line, archives)),
        passages=write(directory, PASSAGES, passages),
        secrets=tuple(secret.key for secret in agent.proto.secrets),
    )
    # Last: an export that is interrupted creates no agent.
    write(directory, SETTINGS, [{"format": 1, "agent": _settings(agent)}])
    return counts


def _settings(agent: "Agent") -> Line:
    line = to_line(agent.proto)
    for secret in line.get("secrets", ()):
        secret.pop("value", None)
    return line


async def _conversations(mnemesh: "Mnemesh", agent: "Agent") -> AsyncIterator[Line]:
    async for conversation in mnemesh.conversations.list(agent_id=agent.id, order="asc"):
        blocks = [to_line(await mnemesh.blocks.get(block_id)) for block_id in conversation.isolated_block_ids]
        summary = await _summary(mnemesh, conversation)
        yield {
            "conversation": to_line(conversation),
            **({"blocks": blocks} if blocks else {}),
            **({"summary_message": to_line(summary)} if summary is not None else {}),
        }


async def _summary(mnemesh: "Mnemesh", conversation: conversations_pb2.Conversation) -> message_pb2.Message | None:
    """Returns the summary at the head of a window, which is not a trace; None if the window has none."""
    window = await mnemesh.messages.window(conversation.id)
    return next((message for message in window.messages if message.role == message_pb2.ROLE_SUMMARY), None)


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
