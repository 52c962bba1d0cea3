"""Searches of an agent's files by similarity and words, and the resolution of its citations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.principal import Principal

from mnemesh_files.errors import FileNotHeld
from mnemesh_files.model.agent_files import HeldFile, without_folder
from mnemesh_files.model.citations import MAX_CITATIONS, MAX_QUOTE_CHARACTERS, CitedLines, citations, quoted
from mnemesh_files.model.file_search import (
    MAX_SEARCHED_IDS,
    FileHit,
    FileSearchResult,
    ResolvedCitation,
    hit_limit,
    require_citing_text,
    require_query,
)
from mnemesh_files.model.files import FileStatus
from mnemesh_files.model.grep import SkipCause, SkippedFile
from mnemesh_files.model.windows import page_of
from mnemesh_files.ports.passage_search import PassageSearchPort
from mnemesh_files.store.base.agent_files import AgentFileStore, TextStore

_MOST_FOUND: Final = 100
"""The most passages that archival returns for one search."""


class FileSearchService:
    """Finds passages in the files of agents, and the lines that agents cite."""

    def __init__(self, store: AgentFileStore, texts: TextStore, passages: PassageSearchPort) -> None:
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
        held = await self._searched(caller, agent_id, file_ids)
        skipped = tuple(
            SkippedFile(file.file_id, file.name, SkipCause.NOT_READY)
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

    async def _searched(self, caller: Principal, agent_id: str, file_ids: Sequence[str]) -> dict[str, HeldFile]:
        if not file_ids:
            files = await self._store.all_files(caller.organization_id, agent_id)
            return {file.file_id: file for file in files}
        held = await self._store.held(caller.organization_id, agent_id, file_ids)
        for index, file_id in enumerate(file_ids):
            if file_id not in held:
                names = [file.name for file in await self._store.all_files(caller.organization_id, agent_id)]
                raise FileNotHeld(file_id, f"file_ids[{index}]", names)
        return held

    async def resolve_citations(self, caller: Principal, agent_id: str, text: str) -> list[ResolvedCitation]:
        """Returns the citations of a text in its order, each with the lines that it cites. Raises InvalidArgument."""
        require_citing_text(text)
        if "]" not in text:
            return []
        files = {file.file_id: file for file in await self._store.all_files(caller.organization_id, agent_id)}
        names = {file.name: file.file_id for file in files.values()}
        alone = Counter(without_folder(name) for name in names)
        short = {without_folder(name): file_id for name, file_id in names.items() if alone[without_folder(name)] == 1}
        found = islice(citations(text, {**short, **names}), MAX_CITATIONS)
        return [await self._resolved(caller, cited, files.get(cited.file_id or "")) for cited in found]

    async def _resolved(self, caller: Principal, cited: CitedLines, file: HeldFile | None) -> ResolvedCitation:
        unresolved = ResolvedCitation(cited.start, cited.end, cited.file_name, cited.start_line, cited.end_line)
        if file is None or file.text_id is None:
            return unresolved
        first, last = cited.start_line, min(cited.end_line, file.total_lines)
        if not 1 <= first <= last:
            return unresolved
        lines = await self._texts.lines(
            caller.organization_id, file.file_id, file.text_id, first, last, MAX_QUOTE_CHARACTERS
        )
        return ResolvedCitation(
            cited.start,
            cited.end,
            file.name,
            first,
            last,
            file.file_id,
            page_of(first, file.page_starts),
            page_of(last, file.page_starts),
            quoted(lines or []),
        )
