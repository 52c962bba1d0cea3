"""Views of core memory, groups, messages, folders, files and search results on the terminal."""

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from typing import Any, Final

from google.protobuf import duration_pb2
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.agents.v1 import groups_pb2
from mnemesh.archival.v1.passages_service_pb2 import PassageHit
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.files.v1 import agent_files_service_pb2, files_pb2
from mnemesh.recall.v1.messages_service_pb2 import MessageHit
from mnemesh.types.v1 import message_pb2
from mnemesh_cli.display import terminal
from mnemesh_cli.display.records import Column, Kind, local_time_text, print_fields
from mnemesh_cli.display.terminal import notice, output, print_labelled
from mnemesh_client.agent import Agent
from mnemesh_client.groups import Group
from mnemesh_client.inputs import text_of
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_client.results import Hits, said, said_by
from mnemesh_kit.errors import NotFound
from mnemesh_kit.time import timestamp_from_proto, zone_from_name
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

_DEFAULTS: Final = {
    "max_turns": "one per member",
    "termination_token": "DONE!",
    "sleeptime_agent_frequency": "1",
    "interval": "none",
    "inactivity": "none",
    "max_steps": "50",
    "max_message_buffer_length": "30",
    "min_message_buffer_length": "15",
}
_LABELS: Final = {
    "sleeptime_agent_frequency": "frequency",
    "max_message_buffer_length": "max buffer",
    "min_message_buffer_length": "min buffer",
}
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


def print_memory(console: Console, memory: blocks_pb2.CoreMemory) -> None:
    """Prints all blocks, each with its label, size and limit."""
    if not memory.blocks:
        console.print("no blocks", style="dim")
    for block in memory.blocks:
        marks = ", read-only" if block.read_only else ""
        title = f"{block.label} ({len(block.value)}/{block.limit}{marks})"
        if console.is_terminal:
            console.print(Panel(Text(block.value or " "), title=Text(title), title_align="left"))
        else:
            console.print(f"[{title}]\n{block.value}", markup=False)


class AgentNames:
    """Names of agents, each read once. An agent that does not exist any more is shown by its id."""

    def __init__(self, mnemesh: Mnemesh) -> None:
        self._mnemesh = mnemesh
        self._names: dict[str, str] = {}

    async def name(self, agent_id: str) -> str:
        """Returns the name of an agent, or its id if it was deleted."""
        if agent_id not in self._names:
            try:
                self._names[agent_id] = (await self._mnemesh.agents.get(agent_id)).name
            except NotFound:
                self._names[agent_id] = agent_id
        return self._names[agent_id]

    async def label(self, agent_id: str) -> str:
        name = await self.name(agent_id)
        return f"{agent_id} (deleted)" if name == agent_id else f"{name} ({agent_id})"


async def print_group(mnemesh: Mnemesh, group: Group) -> None:
    """Prints the members and settings of a group."""
    names = AgentNames(mnemesh)
    manager = group.manager_agent_id
    fields = [
        ("id", group.id),
        ("description", group.description),
        ("type", group.manager_type.replace("_", "-")),
        ("manager", "" if manager is None else await names.label(manager)),
        *[("member", await names.label(member)) for member in group.agent_ids],
        *setting_rows(group.proto),
    ]
    print_fields(fields)


def setting_rows(group: groups_pb2.Group) -> Iterator[tuple[str, str]]:
    """Yields the settings and counters of a group as labels and values, each default with a mark."""
    kind = group.manager_config.WhichOneof("config") or "round_robin"
    manager = getattr(group.manager_config, kind)
    for field in manager.DESCRIPTOR.fields:
        if field.name in _DEFAULTS:
            label = _LABELS.get(field.name, field.name.replace("_", " "))
            is_set = manager.HasField(field.name)
            value = _setting(getattr(manager, field.name)) if is_set else f"{_DEFAULTS[field.name]} (default)"
            yield label, value
    if group.shared_block_ids:
        yield "shared blocks", ", ".join(group.shared_block_ids)
    if group.HasField("metadata"):
        yield "metadata", group.metadata
    if group.hidden:
        yield "hidden", "yes"
    if group.HasField("turns_counter"):
        yield "turns", str(group.turns_counter)
        last = group.last_sleeptime.ToDatetime(UTC) if group.HasField("last_sleeptime") else None
        yield "last sleeptime", local_time_text(last) or "never"
    yield "created", local_time_text(group.create_time.ToDatetime(UTC))


def role_name(message: message_pb2.Message) -> str:
    """Returns the role of a message in lower case."""
    return message_pb2.Role.Name(message.role).removeprefix("ROLE_").lower()


def message_text(message: message_pb2.Message) -> str:
    """Returns the text, the calls and the results in a message, in one line."""
    parts = [text_of(message.content)]
    parts += [f"▸ {call.name}({call.arguments})" for call in message.tool_calls]
    parts += [f"{item.name}: {text_of(item.content)}" for item in message.tool_returns]
    return " ".join(" ".join(parts).split())


def _setting(value: Any) -> str:
    if isinstance(value, duration_pb2.Duration):
        return f"{value.ToTimedelta()}"
    return str(value)


class FolderNames:
    """The names of folders, each read once."""

    def __init__(self, mnemesh: Mnemesh) -> None:
        self._mnemesh = mnemesh
        self._known: dict[str, str] = {}

    async def of(self, file: files_pb2.File) -> str:
        """Returns the name of a file with its folder, as agents know it: "folder/name"."""
        if file.folder_id not in self._known:
            self._known[file.folder_id] = (await self._mnemesh.folders.get(file.folder_id)).name
        return f"{self._known[file.folder_id]}/{file.name}"


def size_text(size: float) -> str:
    """Returns a number of bytes in three digits, such as "1.2 MB"."""
    unit = 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit and size < 9.95 else f"{size:.0f} {_UNITS[unit]}"


def status_name(file: files_pb2.File | files_pb2.AgentFile) -> str:
    """Returns the status of a file as a word, with the share of embedded passages."""
    return files_pb2.FileStatus.Name(file.status).removeprefix("FILE_STATUS_").lower()


def status_text(file: files_pb2.File) -> str:
    """Returns the status of a file, with the share of passages that are embedded."""
    name = status_name(file)
    if file.status == files_pb2.FILE_STATUS_EMBEDDING and file.total_chunks:
        name += f" {100 * file.chunks_embedded // file.total_chunks} %"
    return name


FOLDER_COLUMNS: Final = (
    Column("FOLDER", lambda folder: folder.name, flexible=True),
    Column("FILES", lambda folder: str(folder.file_count), right=True),
    Column("SIZE", lambda folder: size_text(folder.size_bytes), right=True),
    Column("DESCRIPTION", lambda folder: folder.description, flexible=True),
)


def file_columns(names: Mapping[str, str]) -> tuple[Column, ...]:
    """Returns the columns of files. `names`: their names with the folder, by id."""
    return (
        Column("FILE", lambda file: names[file.id], flexible=True),
        Column("STATUS", status_text),
        Column("SIZE", lambda file: size_text(file.size_bytes), right=True),
        Column("LINES", lambda file: str(file.total_lines) if file.HasField("total_lines") else "", right=True),
        Column("UPDATED", lambda file: file.update_time.ToDatetime(UTC), kind=Kind.TIME),
    )


def folder_fields(folder: files_pb2.Folder) -> Iterator[tuple[str, str]]:
    """Yields the fields of a folder with their labels."""
    yield "id", folder.id
    yield "name", folder.name
    yield "description", folder.description
    yield "instructions", folder.instructions
    yield "files", str(folder.file_count)
    yield "size", size_text(folder.size_bytes)
    yield "embedder", folder.embedder
    yield "chunk size", f"{folder.chunk_size} tokens"
    yield "archive", folder.archive_id
    yield "metadata", folder.metadata
    yield "created", _time(folder.create_time)


def file_fields(name: str, file: files_pb2.File) -> Iterator[tuple[str, str]]:
    """Yields the fields of a file with their labels."""
    yield "id", file.id
    yield "name", name
    yield "original name", file.original_name if file.original_name != file.name else ""
    yield "path", file.path
    yield "source", file.source_url
    yield "status", status_text(file)
    yield "error", file.error_message
    yield "type", file.media_type
    yield "size", f"{size_text(file.size_bytes)} ({file.size_bytes} bytes)"
    yield "lines", str(file.total_lines) if file.HasField("total_lines") else ""
    yield "pages", str(file.total_pages) if file.HasField("total_pages") else ""
    yield "passages", str(file.total_chunks) if file.HasField("total_chunks") else ""
    for warning in file.warnings:
        yield "warning", warning
    yield "sha256", file.sha256
    yield "revision", str(file.revision)
    yield "metadata", file.metadata
    yield "created", _time(file.create_time)
    yield "updated", _time(file.update_time)


def citation_text(citation: agent_files_service_pb2.Citation) -> str:
    """Returns a citation in one line, such as "reports/annual.pdf, lines 12–15, page 3"."""
    lines = _span("line", citation.start_line, citation.end_line)
    pages = _span("page", citation.start_page, citation.end_page) if citation.HasField("start_page") else ""
    return ", ".join(part for part in (citation.file_name, lines, pages) if part)


def _span(noun: str, start: int, end: int) -> str:
    return f"{noun}s {start}–{end}" if end > start else f"{noun} {start}"


def _time(time: Timestamp) -> str:
    return local_time_text(time.ToDatetime(UTC))


_LONGEST: Final = 300


class Scope(StrEnum):
    """The kinds of memory to search."""

    ALL = "all"
    MESSAGES = "messages"
    PASSAGES = "passages"


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """What to search for, and in which kinds of memory."""

    queries: list[str]
    speakers: list[str]
    scope: Scope
    before: int
    after: int
    limit: int


async def print_results(agent: Agent, query: str) -> None:
    """Prints the messages and passages of an agent that a query finds, as the command does."""
    print_found(agent, [hits async for hits in find(agent, SearchRequest([query], [], Scope.ALL, 0, 0, 5))])


def print_found(agent: Agent, found: list[tuple[str, Hits[Any]]]) -> None:
    """Prints hits, best first, with their times in the agent's time zone."""
    zone = zone_from_name(agent.proto.time_zone, "time_zone")
    for line in _times(found, zone):
        output().print(Text(line, style="dim"))
    for kind, hits in found:
        for hit in hits:
            (_print_message if kind == "message" else _print_passage)(hit, zone)
    if any(hits for _, hits in found):
        notice(f"times are in {agent.proto.time_zone or 'UTC'}")
    else:
        notice("Nothing matches.")


async def find(agent: Agent, asked: SearchRequest) -> AsyncIterator[tuple[str, Hits[Any]]]:
    """Yields the hits of each kind of memory with its name."""
    options: dict[str, Any] = {
        "further_queries": asked.queries[1:],
        "before": asked.before,
        "after": asked.after,
        "limit": asked.limit,
        "time_zone": agent.proto.time_zone or None,
        "reference_time": datetime.now(UTC),
    }
    if asked.scope is not Scope.PASSAGES:
        yield "message", await agent.search(asked.queries[0], speakers=asked.speakers, **options)
    if asked.scope is not Scope.MESSAGES and not asked.speakers:
        yield "passage", await agent.search_passages(asked.queries[0], **options)


def hit_as_dict(hit: Message) -> dict[str, Any]:
    """Returns a hit with the names of its fields in the contract."""
    return MessageToDict(hit, preserving_proto_field_name=True)


def _times(found: list[tuple[str, Hits[Any]]], zone: tzinfo) -> Iterator[str]:
    """Yields how expressions of time were understood, each once."""
    ranges = (each for _, hits in found for each in hits.time_ranges)
    lines = (
        f"{each.expression}: from {_bound(each, 'start_time', zone)} until {_bound(each, 'end_time', zone)}"
        for each in ranges
    )
    yield from dict.fromkeys(lines)


def _bound(time_range: Message, field: str, zone: tzinfo) -> str:
    return _minute(getattr(time_range, field), zone) if time_range.HasField(field) else "…"


def _print_message(hit: MessageHit, zone: tzinfo) -> None:
    if hit.HasField("question") and not hit.before:
        _print_beside(said_by(hit.question), said(hit.question))
    for message in hit.before:
        _print_beside(said_by(message), said(message))
    _print_hit(hit, hit.message.create_time, zone, said_by(hit.message), hit.text)
    for message in hit.after:
        _print_beside(said_by(message), said(message))


def _print_passage(hit: PassageHit, zone: tzinfo) -> None:
    for passage in hit.before:
        _print_beside("passage", passage.text)
    tags = f" [{', '.join(hit.passage.tags)}]" if hit.passage.tags else ""
    _print_hit(hit, hit.passage.create_time, zone, "passage", f"{hit.passage.text}{tags}")
    for passage in hit.after:
        _print_beside("passage", passage.text)


def _print_hit(hit: MessageHit | PassageHit, time: Timestamp, zone: tzinfo, kind: str, text: str) -> None:
    label = Text.assemble((f"{hit.score:5.2f}  {_minute(time, zone)}", "dim"), " ", (f"{kind:9}", terminal.TOOL))
    print_labelled(label, Text(_shortened(text)))


def _print_beside(kind: str, text: str) -> None:
    print_labelled(Text(f"{'':23} {kind:9}", "dim"), Text(_shortened(text), "dim"))


def _minute(time: Timestamp, zone: tzinfo) -> str:
    return timestamp_from_proto(time, "time").astimezone(zone).strftime("%Y-%m-%d %H:%M")


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
