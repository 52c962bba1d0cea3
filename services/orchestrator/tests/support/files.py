"""A fake of the files service: folders of texts, with windows by line."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mnemesh_kit.errors import NotFound
from mnemesh_orchestrator.model.files import (
    Directories,
    Directory,
    DirectoryFile,
    FileHit,
    FileHits,
    FileLimits,
    FileMatch,
    FileMatches,
    FileView,
    ImageFile,
    OpenedFile,
    Opening,
    WindowRequest,
)


@dataclass
class Files:
    """The files of one agent, which every agent of a test shares."""

    texts: dict[str, str] = field(default_factory=dict)
    """The texts by the names of the files, with their folder."""
    open_names: list[str] = field(default_factory=list)
    limits: FileLimits = field(default_factory=FileLimits)
    revision: int = 0
    calls: list[str] = field(default_factory=list)
    """The names of the methods that were called."""
    attached: list[tuple[str, str]] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    erased: list[str] = field(default_factory=list)
    embedded: bool = True
    images: dict[str, ImageFile | None] = field(default_factory=dict)
    """The images by the ids of their files; None for one that cannot be shown."""

    def put(self, name: str, text: str) -> None:
        """Writes a file, as an owner may at any time."""
        self.texts[name] = text
        self.revision += 1

    async def directories(self, agent_id: str, if_revision: int | None = None) -> Directories | None:
        self.calls.append("directories")
        if if_revision == self.revision:
            return None
        by_folder: dict[str, list[DirectoryFile]] = {}
        for name in sorted(self.texts):
            is_open = name in self.open_names
            value = self._value(name) if is_open else ""
            by_folder.setdefault(name.partition("/")[0], []).append(DirectoryFile(name, is_open, value))
        found = tuple(Directory(name, files=tuple(files), file_count=len(files)) for name, files in by_folder.items())
        return Directories(self.revision, found, self.limits, len(self.open_names))

    def _value(self, name: str) -> str:
        lines = self.texts[name].split("\n")
        rows = "".join(f"\n{number}: {line}" for number, line in enumerate(lines, 1))
        return f"[Viewing file start (out of {len(lines)} lines)]{rows}"

    async def create_folder(self, request_id: str, name: str, embedder: str | None = None) -> str:
        self.calls.append("create_folder")
        self.folders.append(name)
        return f"source-{len(self.folders)}"

    async def attach(self, request_id: str, agent_id: str, folder_id: str, *, opens_files: bool = False) -> int:
        self.calls.append("attach")
        self.attached.append((agent_id, folder_id))
        self.revision += 1
        return self.revision

    async def open(
        self, request_id: str, agent_id: str, windows: Sequence[WindowRequest], *, close_others: bool = False
    ) -> Opening:
        self.calls.append("open")
        opened = []
        for window in windows:
            if window.name not in self.texts:
                raise NotFound(f"{window.name} not attached", file_name=window.name)
            opened.append(OpenedFile("file-1", window.name, FileView(None, None), None, self._value(window.name)))
        names = [each.name for each in opened]
        kept = [name for name in self.open_names if name not in names]
        closed = tuple(kept) if close_others else ()
        kept = [] if close_others else kept
        evicted = tuple(kept[: max(0, len(kept) + len(names) - self.limits.max_files_open)])
        self.open_names = [*kept[len(evicted) :], *names]
        self.revision += 1
        return Opening(tuple(opened), closed, evicted)

    async def image(self, file_id: str) -> ImageFile | None:
        self.calls.append("image")
        if file_id not in self.images:
            raise NotFound("The file was deleted.", file_id=file_id)
        return self.images[file_id]

    async def grep(
        self, agent_id: str, pattern: str, include: str | None = None, *, context_lines: int = 1, offset: int = 0
    ) -> FileMatches:
        self.calls.append("grep")
        found = [
            FileMatch(name, number, line)
            for name, text in sorted(self.texts.items())
            for number, line in enumerate(text.split("\n"), 1)
            if pattern.casefold() in line.casefold()
        ]
        counts = {match.file_name: 0 for match in found}
        for match in found:
            counts[match.file_name] += 1
        page = tuple(found[offset : offset + 20])
        following = offset + 20 if offset + 20 < len(found) else None
        return FileMatches(page, len(found), tuple(counts.items()), len(self.texts), next_offset=following)

    async def search(self, agent_id: str, query: str, limit: int) -> FileHits:
        self.calls.append("search")
        hits = [FileHit(name, text, 1, text.count("\n") + 1) for name, text in sorted(self.texts.items())]
        return FileHits(tuple(hits[:limit]), degraded=not self.embedded)

    async def set_limits(self, request_id: str, agent_id: str, limits: FileLimits) -> None:
        self.calls.append("set_limits")
        self.limits = limits
        self.revision += 1

    async def erase_agent(self, request_id: str, agent_id: str) -> None:
        self.calls.append("erase_agent")
        self.erased.append(agent_id)


def limited(files: Files, most: int) -> None:
    """Sets the number of files that may be open."""
    files.limits = replace(files.limits, max_files_open=most)
    files.revision += 1
