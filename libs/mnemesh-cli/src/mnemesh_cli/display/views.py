"""Views of core memory, groups, messages, folders and files on the terminal."""

from collections.abc import Iterator, Mapping
from datetime import UTC
from typing import Any, Final

from google.protobuf import duration_pb2
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.agents.v1 import groups_pb2
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.files.v1 import agent_files_service_pb2, files_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_cli.display.records import Column, Kind, local_time_text, print_fields
from mnemesh_client.groups import Group
from mnemesh_client.inputs import text_of
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import NotFound
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
