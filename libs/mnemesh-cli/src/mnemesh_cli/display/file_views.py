"""How files and folders are shown: as tables of 80 columns, and as fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.files.v1 import agent_files_service_pb2, files_pb2
from mnemesh_cli.display.terminal import output
from mnemesh_client.mnemesh import Mnemesh
from rich.table import Column, Table
from rich.text import Text

_UNITS: Final = ("B", "kB", "MB", "GB", "TB")
_STYLES: Final = {files_pb2.FILE_STATUS_COMPLETED: "green", files_pb2.FILE_STATUS_ERROR: "red"}


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


def status_text(file: files_pb2.File) -> Text:
    """Returns the status of a file in colour, with the share of passages that are embedded."""
    name = status_name(file)
    if file.status == files_pb2.FILE_STATUS_EMBEDDING and file.total_chunks:
        name += f" {100 * file.chunks_embedded // file.total_chunks} %"
    return Text(name, style=_STYLES.get(file.status, "yellow"))


def print_folders(folders: Iterable[files_pb2.Folder]) -> int:
    """Prints a table of folders. Returns their number."""
    table = Table(Column("FOLDER", overflow="fold"), _numbers("FILES"), _numbers("SIZE"), "DESCRIPTION", box=None)
    for folder in folders:
        table.add_row(Text(folder.name), str(folder.file_count), size_text(folder.size_bytes), Text(folder.description))
    if table.row_count:
        output().print(table)
    return table.row_count


def print_files(rows: Iterable[tuple[str, files_pb2.File]]) -> int:
    """Prints a table of files with their names. Returns their number."""
    table = Table(
        Column("FILE", overflow="fold"),
        Column("STATUS", no_wrap=True),
        _numbers("SIZE"),
        _numbers("LINES"),
        Column("UPDATED", no_wrap=True),
        box=None,
    )
    for name, file in rows:
        lines = str(file.total_lines) if file.HasField("total_lines") else ""
        table.add_row(Text(name), status_text(file), size_text(file.size_bytes), lines, _day(file.update_time))
    if table.row_count:
        output().print(table)
    return table.row_count


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Prints the fields that have a value, one per line."""
    table = Table(box=None, show_header=False)
    for label, value in fields:
        if value:
            table.add_row(label, Text(value))
    output().print(table)


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
    yield "status", str(status_text(file))
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


def _numbers(header: str) -> Column:
    return Column(header, justify="right", no_wrap=True)


def _span(noun: str, start: int, end: int) -> str:
    return f"{noun}s {start}–{end}" if end > start else f"{noun} {start}"


def _day(time: Timestamp) -> str:
    return time.ToDatetime().strftime("%Y-%m-%d")


def _time(time: Timestamp) -> str:
    return time.ToJsonString()
