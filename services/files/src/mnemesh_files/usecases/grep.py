"""The search of an agent's files by regular expression, in threads, with limits of time, size and matches."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mnemesh_kit.deadline import remaining
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.principal import Principal

from mnemesh_files.model.agent_files import HeldFile
from mnemesh_files.model.grep import (
    DEFAULT_PAGE,
    MAX_CONTEXT_LINES,
    MAX_FILE_BYTES,
    MAX_MATCHES,
    MAX_PAGE,
    MAX_PAGE_BYTES,
    MAX_TOTAL_BYTES,
    FileMatches,
    GrepMatch,
    GrepQuery,
    GrepResult,
    SkipCause,
    SkippedFile,
    compiled,
    found_lines,
    match_of,
    name_filter,
)
from mnemesh_files.store.base.agent_files import AgentFileStore, TextStore

THREADS: Final = 2
_BATCH_CHARACTERS: Final = 8 * 1024 * 1024
"""The characters of the texts that are read at once."""
_BATCH_FILES: Final = 1_000
_MARGIN_SECONDS: Final = 0.5
"""The time before the deadline of the caller that is left for the response."""


@dataclass(slots=True)
class _Scan:
    """A search that runs: only its own thread changes it."""

    pattern: Any
    query: GrepQuery
    is_late: Callable[[], bool]
    matches: list[GrepMatch] = field(default_factory=list)
    counts: dict[str, FileMatches] = field(default_factory=dict)
    total: int = 0
    page_size: int = 0
    searched: int = 0
    size: int = 0
    """The bytes that were searched."""
    skipped: list[SkippedFile] = field(default_factory=list)
    capped: bool = False
    timed_out: bool = False

    @property
    def is_over(self) -> bool:
        return self.capped or self.timed_out

    def files(self, files: Sequence[HeldFile], segments: dict[tuple[str, str], list[bytes]]) -> None:
        """Searches files in order."""
        for file in files:
            if not self.is_over:
                # Consecutive segments are consecutive lines.
                parts = segments.get((file.file_id, file.text_id or ""), [])
                self._file(file, b"\n".join(map(zlib.decompress, parts)))

    def _file(self, file: HeldFile, text: bytes) -> None:
        if cause := self._refusal(len(text)):
            self.skipped.append(SkippedFile(file.file_id, file.name, cause))
            return
        self.size += len(text)
        count = 0
        for found in found_lines(self.pattern, text, self.is_late):
            if found is None:
                self.timed_out = True
                break
            if self.total == MAX_MATCHES:
                self.capped = True
                break
            if self._is_shown(self.total):
                match = match_of(
                    found,
                    text,
                    self.query.context_lines,
                    file_id=file.file_id,
                    file_name=file.name,
                    page_starts=file.page_starts,
                )
                self.matches.append(match)
                self.page_size += match.size
            self.total += 1
            count += 1
        if count:
            self.counts[file.file_id] = FileMatches(file.file_id, file.name, count)
        if self.timed_out:
            self.skipped.append(SkippedFile(file.file_id, file.name, SkipCause.TIMEOUT))
        else:
            self.searched += 1

    def _refusal(self, size: int) -> SkipCause | None:
        if size > MAX_FILE_BYTES:
            return SkipCause.FILE_TOO_LARGE
        return SkipCause.TOTAL_TOO_LARGE if self.size + size > MAX_TOTAL_BYTES else None

    def _is_shown(self, ordinal: int) -> bool:
        """Returns whether the match with this number belongs to the page: it ends early if it is too large."""
        start = self.query.offset
        is_next = ordinal == start + len(self.matches)
        return is_next and len(self.matches) < self.query.limit and (self.page_size < MAX_PAGE_BYTES)


class GrepService:
    """Finds lines in all files of an agent. Texts are decompressed and searched in threads."""

    def __init__(self, store: AgentFileStore, texts: TextStore, seconds: float) -> None:
        self._store = store
        self._texts = texts
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="grep")

    async def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def grep(self, caller: Principal, agent_id: str, query: GrepQuery) -> GrepResult:
        """Returns the lines that match. Files with matches count as used.

        Raises:
            FilePatternInvalid: the pattern or `include` is no regular expression.
            InvalidArgument: a number is out of its range.
        """
        query = _validated(query)
        pattern, is_included = compiled(query.pattern), name_filter(query.include)
        left = remaining()
        seconds = self._seconds if left is None else min(self._seconds, max(0.0, left - _MARGIN_SECONDS))
        ends_at = time.monotonic() + seconds
        scan = _Scan(pattern, query, lambda: time.monotonic() > ends_at)
        files = await self._store.all_files(caller.organization_id, agent_id)
        included = [file for file in sorted(files, key=lambda file: file.name) if is_included(file.name)]
        ready = [file for file in included if file.text_id is not None]
        unready = [
            SkippedFile(file.file_id, file.name, SkipCause.NOT_READY)
            for file in included
            if file.text_id is None and not file.is_image
        ]
        done = await self._search(caller.organization_id, ready, scan)
        if not scan.capped:
            scan.skipped += [SkippedFile(file.file_id, file.name, SkipCause.TIMEOUT) for file in ready[done:]]
        await self._use(caller, agent_id, scan)
        return _result(scan, unready)

    async def _search(self, organization_id: str, files: Sequence[HeldFile], scan: _Scan) -> int:
        """Searches files in batches until a limit is reached. Returns the number of files that were looked at."""
        done = 0
        for batch in _batches(files):
            if scan.is_late():
                scan.timed_out = True
            if scan.is_over:
                break
            texts = [(file.file_id, file.text_id or "") for file in batch]
            segments = await self._texts.compressed(organization_id, texts)
            await asyncio.get_running_loop().run_in_executor(self._threads, scan.files, batch, segments)
            done += len(batch)
        if scan.timed_out and done:
            reached = scan.searched + len(scan.skipped)
            return min(done, reached)
        return done

    async def _use(self, caller: Principal, agent_id: str, scan: _Scan) -> None:
        if scan.counts:
            await self._store.use(caller.organization_id, agent_id, list(scan.counts))


def _validated(query: GrepQuery) -> GrepQuery:
    for name, value, most in (
        ("context_lines", query.context_lines, MAX_CONTEXT_LINES),
        ("limit", query.limit, MAX_PAGE),
        ("offset", query.offset, 2**31 - 1),
    ):
        if not 0 <= value <= most:
            raise InvalidArgument(f"{name} must be between 0 and {most:,}.", field=name)
    return query if query.limit else replace(query, limit=DEFAULT_PAGE)


def _batches(files: Sequence[HeldFile]) -> Iterator[list[HeldFile]]:
    batch: list[HeldFile] = []
    size = 0
    for file in files:
        if batch and (size + file.total_chars > _BATCH_CHARACTERS or len(batch) == _BATCH_FILES):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.total_chars
    if batch:
        yield batch


def _result(scan: _Scan, unready: Sequence[SkippedFile]) -> GrepResult:
    shown_to = scan.query.offset + len(scan.matches)
    return GrepResult(
        scan.matches,
        scan.total,
        sorted(scan.counts.values(), key=lambda file: (-file.count, file.file_name)),
        scan.searched,
        [*unready, *scan.skipped],
        scan.capped,
        scan.timed_out,
        shown_to if scan.matches and shown_to < scan.total else None,
    )
