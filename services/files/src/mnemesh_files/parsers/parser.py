"""Parses files: those of text in the service, others in a sandbox process."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog
from mnemesh_sandbox import Access, Outcome, OutcomeStatus, Sandbox, SandboxSettings, SandboxUnavailable, Task

from mnemesh_files.parsers.detection import HEAD_BYTES, Detected, detect
from mnemesh_files.parsers.document import DocumentKind, ParsedDocument
from mnemesh_files.parsers.errors import Cause, DocumentUnreadable, ParserUnavailable
from mnemesh_files.parsers.formats import Format
from mnemesh_files.parsers.limits import DEFAULT_LIMITS, MEGABYTE, ParseLimits
from mnemesh_files.parsers.lines import normalized
from mnemesh_files.parsers.packages import package_directories
from mnemesh_files.parsers.pictures import with_text_of_pages, with_text_of_picture
from mnemesh_files.parsers.text_files import parse_text_file
from mnemesh_files.ports.pictures import PictureReader

_SOURCE: Final = "from mnemesh_files.parsers.inside.entry import parse\n"
_DRAW_SOURCE: Final = "from mnemesh_files.parsers.inside.pictures import page_pictures\n"
_JPEG: Final = b"\xff\xd8\xff"
_PROCESSES: Final = 16
_STREAM_BYTES: Final = 20_000
_SHOWN: Final = 2_000
_MAX_WARNINGS: Final = 100
_log = structlog.get_logger("mnemesh.files.parsers")


def sandbox_settings(settings: SandboxSettings, limits: ParseLimits = DEFAULT_LIMITS) -> SandboxSettings:
    """Returns the settings of the sandbox of parsers: `settings` with the limits of a document."""
    return replace(
        settings,
        cpu_seconds=round(limits.seconds),
        memory_mb=limits.memory_mb,
        processes=_PROCESSES,
        stream_bytes=_STREAM_BYTES,
        # A character such as a line feed takes two of JSON.
        result_chars=limits.document_characters * 2 + MEGABYTE,
    )


class DocumentParser:
    """Parses one file after another, or several at once."""

    def __init__(
        self,
        open_sandbox: Callable[[], Awaitable[Sandbox]],
        limits: ParseLimits = DEFAULT_LIMITS,
        *,
        concurrency: int = 2,
        pictures: PictureReader | None = None,
    ) -> None:
        """Stores what it needs. The caller closes the sandbox.

        Args:
            open_sandbox: Returns the sandbox of parsers, with the settings of `sandbox_settings`. Called with the first
                document that needs it, because a sandbox probes the host when it is opened.
            limits: What one document may cost.
            concurrency: How many documents are parsed at the same time in the sandbox; further ones wait.
            pictures: Reads the text of images. None leaves them without text. The caller closes it.
        """
        self._pictures = pictures
        self._open_sandbox = open_sandbox
        self._opening = asyncio.Lock()
        self._sandbox: Sandbox | None = None
        self._limits = limits
        self._free = asyncio.Semaphore(concurrency)
        self._access = Access(packages=package_directories())

    async def parse(self, path: Path, name: str, media_type: str | None = None) -> ParsedDocument:
        """Returns the text of a file.

        Args:
            path: The content, which does not change meanwhile.
            name: The name of the file. It decides between formats of text; otherwise the content decides.
            media_type: What the client says that the file is. Used if the name says nothing.

        Raises:
            DocumentUnreadable: The document is the cause: its format, damage, a password or a limit.
            ParserUnavailable: The host is the cause.
            OSError: The file cannot be read.
        """
        detected, size = await asyncio.to_thread(_detected, path, name, media_type)
        if detected.format is Format.TEXT:
            return await asyncio.to_thread(parse_text_file, path, detected.file_type, self._limits)
        if size > self._limits.document_mb * MEGABYTE:
            text = f"The document has {size // MEGABYTE:,} MB; at most {self._limits.document_mb:,} MB are parsed."
            raise DocumentUnreadable(Cause.TOO_LARGE, f"{text} Divide it, or upload its text.")
        document = await self._parse_inside(path, detected)
        return document if self._pictures is None else await self._with_pictures(document, path, self._pictures)

    async def _with_pictures(self, document: ParsedDocument, path: Path, reader: PictureReader) -> ParsedDocument:
        """Returns the document with the text of its pictures: itself, or the pages of a PDF that have none."""

        async def draw(pages: Sequence[int]) -> list[bytes]:
            outcome = await self._run(Task(_DRAW_SOURCE, "page_pictures", {"pages": list(pages)}, content=path))
            return await asyncio.to_thread(_pictures, outcome, len(pages))

        if document.kind is DocumentKind.IMAGE:
            return await with_text_of_picture(document, path, reader)
        if document.media_type == "application/pdf":
            return await with_text_of_pages(document, draw, reader, self._limits.document_characters)
        return document

    async def _parse_inside(self, path: Path, detected: Detected) -> ParsedDocument:
        arguments = {
            "document_format": detected.format.value,
            "media_type": detected.file_type.media_type,
            "limits": self._limits.to_values(),
        }
        outcome = await self._run(Task(_SOURCE, "parse", arguments, content=path))
        if len(outcome.text) > MEGABYTE:
            return await asyncio.to_thread(self._document, outcome)
        return self._document(outcome)

    async def _run(self, task: Task) -> Outcome:
        try:
            async with self._opening:
                sandbox = self._sandbox = self._sandbox or await self._open_sandbox()
            async with self._free:
                return await sandbox.run(task, self._limits.seconds, self._access)
        except SandboxUnavailable as error:
            raise ParserUnavailable(
                f"This host cannot run the parser of documents. {error} Ask the operator to allow the isolation of "
                "processes, or upload the text of the document."
            ) from error

    def _document(self, outcome: Outcome) -> ParsedDocument:
        """Returns the document of an outcome. Nothing in it is trusted: the parser may be under the document's control.

        Raises:
            DocumentUnreadable: It has none.
        """
        if outcome.status is not OutcomeStatus.SUCCESS:
            raise self._failure(outcome)
        try:
            answer = json.loads(outcome.text)
            if "document" in answer:
                return _checked(ParsedDocument.from_value(answer["document"]))
            cause, message = Cause(answer["cause"]), str(answer["message"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            _log.warning("parser_answer_invalid", error=str(error)[:_SHOWN], stderr=outcome.stderr[-_SHOWN:])
            raise DocumentUnreadable(Cause.FAILED, _FAILED) from error
        if cause is Cause.FAILED:
            _log.warning("parser_failed", stderr=outcome.stderr[-_SHOWN:])
        raise DocumentUnreadable(cause, message)

    def _failure(self, outcome: Outcome) -> DocumentUnreadable:
        limits = self._limits
        if outcome.status is OutcomeStatus.TIMED_OUT or "seconds of processor time" in outcome.text:
            text = f"The document takes more than {limits.seconds:g} seconds to read. Divide it, or upload its text."
            return DocumentUnreadable(Cause.TOO_SLOW, text)
        if "MemoryError" in outcome.text:
            text = f"The document needs more than {limits.memory_mb:,} MB of memory. Divide it, or upload its text."
            return DocumentUnreadable(Cause.TOO_LARGE, text)
        if "killed by" in outcome.text:  # libraries in C end so if they get no memory
            text = (
                f"The document needs more than {limits.memory_mb:,} MB of memory, or is damaged. Divide it, or save it"
            )
            return DocumentUnreadable(Cause.FAILED, f"{text} again in its application.")
        _log.warning("parser_ended", outcome=outcome.text, stderr=outcome.stderr[-_SHOWN:])
        return DocumentUnreadable(Cause.FAILED, _FAILED)


_FAILED: Final = (
    "The document cannot be read: the parser ended without a result. Open the document in its application and save it "
    "again, or export it as PDF."
)


def _pictures(outcome: Outcome, count: int) -> list[bytes]:
    """Returns the drawn pages of an outcome; b"" for each that has none. Nothing in it is trusted."""
    try:
        values = json.loads(outcome.text) if outcome.status is OutcomeStatus.SUCCESS else []
        found = [base64.b64decode(value, validate=True) for value in values]
    except (ValueError, TypeError, RecursionError):
        found = []
    found = [picture if picture.startswith(_JPEG) else b"" for picture in found]
    return found if len(found) == count else [b""] * count


def _checked(document: ParsedDocument) -> ParsedDocument:
    """Returns the document with the properties that `ParsedDocument` promises.

    Raises:
        ValueError: Its pages are no pages of its text.
    """
    text = normalized(document.text)
    starts, end = document.page_starts, text.count("\n") + 2
    if any(not 1 <= start <= end for start in starts) or list(starts) != sorted(starts):
        raise ValueError("page_starts are no lines")
    return replace(
        document,
        text=text,
        title=_one_line(document.title),
        page_names=tuple(map(_one_line, document.page_names)),
        warnings=tuple(map(_one_line, document.warnings))[:_MAX_WARNINGS],
    )


def _one_line(text: str) -> str:
    return " ".join(normalized(text).split())[:_SHOWN]


def _detected(path: Path, name: str, media_type: str | None) -> tuple[Detected, int]:
    with path.open("rb") as file:
        size = path.stat().st_size
        return detect(file.read(HEAD_BYTES), name, media_type), size
