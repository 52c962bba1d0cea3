"""Reads contents as texts with passages: between the blob store, the parsers and the chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from mnemesh_kit.ids import IdSource

from mnemesh_files.blobs.base import BlobStore
from mnemesh_files.chunks.passages import Passage, passages_of
from mnemesh_files.errors import ContentMissing
from mnemesh_files.model.ingestion import Job, ParsedText
from mnemesh_files.parsers.document import DocumentKind, ParsedDocument
from mnemesh_files.parsers.parser import DocumentParser


class TextReader:
    """Parses contents and divides texts."""

    def __init__(self, blobs: BlobStore, open_parser: Callable[[], Awaitable[DocumentParser]], ids: IdSource) -> None:
        """Opens the parser with the first file."""
        self._blobs = blobs
        self._open_parser = open_parser
        self._opening = asyncio.Lock()
        self._parser: DocumentParser | None = None
        self._ids = ids

    async def document(self, job: Job) -> ParsedDocument:
        """Returns the parsed content of a file.

        Raises:
            DocumentUnreadable, ParserUnavailable: see DocumentParser.parse.
            Unavailable, ContentMissing: see BlobStore.
        """
        file = job.file
        if file.blob_id is None:
            raise ContentMissing(file.id)
        async with self._opening:
            parser = self._parser = self._parser or await self._open_parser()
        async with self._blobs.local_copy(file.blob_id) as path:
            return await parser.parse(path, file.original_name, file.media_type)

    def parsed_text(self, document: ParsedDocument) -> ParsedText:
        """Returns the text of a document under a new id."""
        facts = {
            "total_lines": document.total_lines,
            "total_chars": document.total_chars,
            "total_pages": document.total_pages,
            "page_starts": _json(document.page_starts),
            "warnings": _json(document.warnings),
            "kind": document.kind.value,
            "language": document.language,
        }
        return ParsedText(self._ids.new("text"), document.lines, facts, document.media_type)

    def restored(self, lines: Sequence[str], facts: Mapping[str, Any]) -> ParsedDocument:
        """Returns the document of a stored text, as far as passages depend on it."""
        return ParsedDocument(
            kind=DocumentKind(facts["kind"]),
            media_type="",
            text="\n".join(lines),
            language=facts["language"],
            page_starts=tuple(msgspec.json.decode(facts["page_starts"])),
        )

    async def passages(self, document: ParsedDocument, chunk_size: int) -> Sequence[Passage]:
        """Returns the passages of a document, in order."""
        return await asyncio.to_thread(passages_of, document, chunk_size)


def _json(values: Sequence[Any]) -> str:
    return msgspec.json.encode(values).decode()
