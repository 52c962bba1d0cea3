"""How files and folders are shown: as tables of 80 columns, and as fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.files.v1 import agent_files_service_pb2, files_pb2
from mnemesh_cli.display.records import Column, Kind, local_time_text
from mnemesh_client.mnemesh import Mnemesh

_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


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
