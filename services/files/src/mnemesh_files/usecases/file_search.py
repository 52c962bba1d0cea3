"""The searches in the files of an agent: by pattern and by meaning."""

import asyncio
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from mnemesh_kit.call_context import Principal, remaining
from mnemesh_kit.errors import InvalidArgument
from mnemesh_types.files import Citation, FileHit, FileMatches, FileStatus, GrepMatch, SkipCause, SkippedFile

from mnemesh_files.clients import PassageSearchClient
from mnemesh_files.errors import FileNotHeld
from mnemesh_files.model.agent_files import HeldFile, page_of, without_folder
from mnemesh_files.model.file_search import (
    DEFAULT_PAGE,
    MAX_CITATIONS,
    MAX_CONTEXT_LINES,
    MAX_FILE_BYTES,
    MAX_MATCHES,
    MAX_PAGE,
    MAX_PAGE_BYTES,
    MAX_QUOTE_CHARACTERS,
    MAX_SEARCHED_IDS,
    MAX_TOTAL_BYTES,
    CitedLines,
    FileSearchResult,
    GrepQuery,
    GrepResult,
    citations,
    compiled,
    found_lines,
    hit_limit,
    match_of,
    name_filter,
    quoted,
    require_citing_text,
    require_query,
    size_of,
)
from mnemesh_files.store.agent_files import AgentFileStore
from mnemesh_files.store.ingestion import TextStore

THREADS: Final = 2
_BATCH_CHARACTERS: Final = 8 * 1024 * 1024
"""The characters of the texts that are read at once."""
_BATCH_FILES: Final = 1_000
SECONDS: Final = 30.0
"""The time limit of a search by pattern. A search that reaches it returns what it has found."""
_MARGIN_SECONDS: Final = 0.5
"""The time before the deadline of the caller that is left for the response."""

_MOST_FOUND: Final = 100
"""The most passages that archival returns for one search."""


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
            self.skipped.append(SkippedFile(file.file_id, file.name, cause=cause))
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
                self.page_size += size_of(match)
            self.total += 1
            count += 1
        if count:
            self.counts[file.file_id] = FileMatches(file.file_id, file.name, count)
        if self.timed_out:
            self.skipped.append(SkippedFile(file.file_id, file.name, cause=SkipCause.TIMEOUT))
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

    def __init__(self, store: AgentFileStore, texts: TextStore) -> None:
        self._store = store
        self._texts = texts
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="grep")

    async def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def grep(self, caller: Principal, agent_id: str, query: GrepQuery) -> GrepResult:
        """Returns the lines that match. Files with matches count as used.

        Raises:
            FilePatternInvalid: the pattern or `include` is not a regular expression.
            InvalidArgument: a number is out of its range.
        """
        query = _validated(query)
        pattern, is_included = compiled(query.pattern), name_filter(query.include)
        left = remaining()
        seconds = SECONDS if left is None else min(SECONDS, max(0.0, left - _MARGIN_SECONDS))
        ends_at = time.monotonic() + seconds
        scan = _Scan(pattern, query, lambda: time.monotonic() > ends_at)
        files = await self._store.list_all(caller.organization_id, agent_id)
        included = [file for file in sorted(files, key=lambda file: file.name) if is_included(file.name)]
        ready = [file for file in included if file.text_id is not None]
        unready = [
            SkippedFile(file.file_id, file.name, cause=SkipCause.NOT_READY)
            for file in included
            if file.text_id is None and not file.is_image
        ]
        done = await self._search(caller.organization_id, ready, scan)
        if not scan.capped:
            scan.skipped += [SkippedFile(file.file_id, file.name, cause=SkipCause.TIMEOUT) for file in ready[done:]]
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
            segments = await self._texts.read_compressed(organization_id, texts)
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


class FileSearchService:
    """Finds passages in the files of agents, and the lines that agents cite."""

    def __init__(self, store: AgentFileStore, texts: TextStore, passages: PassageSearchClient) -> None:
        self._store = store
        self._texts = texts
        self._passages = passages

    async def search(
        self, caller: Principal, agent_id: str, query: str, limit: int, file_ids: Sequence[str]
    ) -> FileSearchResult:
        """Returns the best passages of the agent's files. Files with hits count as used.

        Raises:
            InvalidArgument: the query is blank or too long, or a number is out of its range.
            FileNotHeld: the agent does not hold one of `file_ids`.
            Unavailable, DeadlineExceeded: archival does not answer.
        """
        query, limit = require_query(query), hit_limit(limit)
        if len(file_ids) > MAX_SEARCHED_IDS:
            raise InvalidArgument(f"file_ids must have at most {MAX_SEARCHED_IDS:,} values.", field="file_ids")
        held = await self._find_searched(caller, agent_id, file_ids)
        skipped = tuple(
            SkippedFile(file.file_id, file.name, cause=SkipCause.NOT_READY)
            for file in held.values()
            if file.status is not FileStatus.COMPLETED and not file.is_searchable
        )
        folder_ids = {file.folder_id for file in held.values() if file.is_searchable}
        archive_ids = await self._store.archives(caller.organization_id, agent_id, folder_ids)
        if not archive_ids:
            return FileSearchResult(skipped=skipped)
        wanted = [file_id for file_id in dict.fromkeys(file_ids) if held[file_id].is_searchable]
        # Passages of replaced texts and of deleted files may still be in the archive.
        found = await self._passages.search(query, archive_ids, wanted, min(2 * limit + 10, _MOST_FOUND))
        places = await self._texts.passage_lines(caller.organization_id, [each.id for each in found.passages])
        hits: list[FileHit] = []
        for each in found.passages:
            place = places.get(each.id)
            file = held.get(place.file_id) if place is not None else None
            if place is None or file is None or len(hits) == limit:
                continue
            pages = (page_of(place.start_line, file.page_starts), page_of(place.end_line, file.page_starts))
            lines = (place.start_line, place.end_line)
            hits.append(FileHit(file.file_id, file.name, each.id, each.text, each.score, *lines, *pages))
        if hits:
            used = list(dict.fromkeys(hit.file_id for hit in reversed(hits)))
            await self._store.use(caller.organization_id, agent_id, used)
        return FileSearchResult(tuple(hits), skipped, found.degraded)

    async def _find_searched(self, caller: Principal, agent_id: str, file_ids: Sequence[str]) -> dict[str, HeldFile]:
        if not file_ids:
            files = await self._store.list_all(caller.organization_id, agent_id)
            return {file.file_id: file for file in files}
        held = await self._store.find_held(caller.organization_id, agent_id, file_ids)
        for index, file_id in enumerate(file_ids):
            if file_id not in held:
                names = [file.name for file in await self._store.list_all(caller.organization_id, agent_id)]
                raise FileNotHeld(file_id, f"file_ids[{index}]", names)
        return held

    async def resolve_citations(self, caller: Principal, agent_id: str, text: str) -> list[Citation]:
        """Returns the citations of a text in its order, each with the lines that it cites. Raises InvalidArgument."""
        require_citing_text(text)
        if "]" not in text:
            return []
        files = {file.file_id: file for file in await self._store.list_all(caller.organization_id, agent_id)}
        names = {file.name: file.file_id for file in files.values()}
        alone = Counter(without_folder(name) for name in names)
        short = {without_folder(name): file_id for name, file_id in names.items() if alone[without_folder(name)] == 1}
        found = islice(citations(text, {**short, **names}), MAX_CITATIONS)
        return [await self._resolve(caller, cited, files.get(cited.file_id or "")) for cited in found]

    async def _resolve(self, caller: Principal, cited: CitedLines, file: HeldFile | None) -> Citation:
        unresolved = Citation(
            cited.start, cited.end, cited.file_name, start_line=cited.start_line, end_line=cited.end_line
        )
        if file is None or file.text_id is None:
            return unresolved
        first, last = cited.start_line, min(cited.end_line, file.total_lines)
        if not 1 <= first <= last:
            return unresolved
        lines = await self._texts.lines(
            caller.organization_id, file.file_id, file.text_id, first, last, MAX_QUOTE_CHARACTERS
        )
        return Citation(
            cited.start,
            cited.end,
            file.name,
            file.file_id,
            first,
            last,
            page_of(first, file.page_starts),
            page_of(last, file.page_starts),
            quoted(lines or []),
        )
