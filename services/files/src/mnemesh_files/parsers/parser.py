"""Parses files: those of text in the service, others in a sandbox process."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Final

import structlog
from mnemesh_sandbox import Access, Outcome, OutcomeStatus, Sandbox, SandboxSettings, SandboxUnavailable, Task

from mnemesh_files.clients import PictureReader, PictureUnreadable
from mnemesh_files.parsers.document import (
    DEFAULT_LIMITS,
    MEGABYTE,
    PAGES_WITHOUT_TEXT,
    Cause,
    DocumentKind,
    DocumentUnreadable,
    ParsedDocument,
    ParseLimits,
    ParserUnavailable,
    TextBuilder,
    normalized,
)
from mnemesh_files.parsers.formats import HEAD_BYTES, Detected, Format, detect, parse_text_file

_MODULES: Final = (
    "mnemesh_files",
    "chardetng_py",
    "html_to_markdown",
    "lxml",
    "mammoth",
    "openpyxl",
    "PIL",
    "pptx",
    "pypdfium2",
    "striprtf",
)

MAX_PAGES: Final = 100
"""The number of pages of one document that a model reads."""
PAGES_AT_ONCE: Final = 4
_MEDIA_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
_MAX_MB: Final = 20
_MAX_CHARS: Final = 100_000
_AGAIN: Final = "Process the file again to try again."

Draw = Callable[[Sequence[int]], Awaitable[Sequence[bytes]]]
"""Draws pages, which count from 1, as JPEG; b"" for a page that cannot be drawn."""

_SOURCE: Final = "from mnemesh_files.parsers.inside.entry import parse\n"
_DRAW_SOURCE: Final = "from mnemesh_files.parsers.inside.pdf import page_pictures\n"
_JPEG: Final = b"\xff\xd8\xff"
_PROCESSES: Final = 16
_STREAM_BYTES: Final = 20_000
_SHOWN: Final = 2_000
_MAX_WARNINGS: Final = 100
_log = structlog.get_logger("mnemesh.files.parsers")


def package_directories() -> tuple[str, ...]:
    """Returns the directories of this package and of the libraries of documents, each once."""
    found: dict[str, None] = {}
    for name in _MODULES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise RuntimeError(f"The package {name} is not installed.")
        found[str(Path(spec.origin).resolve().parent.parent)] = None
    return tuple(found)


async def with_text_of_picture(document: ParsedDocument, path: Path, reader: PictureReader) -> ParsedDocument:
    """Returns the document of an image with the text that a model reads from it; with a warning if there is none.

    Args:
        document: The document of the image.
        path: The image.
        reader: The model.

    Raises:
        OSError: The image cannot be read.
    """
    try:
        text = await _read(document, path, reader)
    except PictureUnreadable as error:
        return replace(document, warnings=(*document.warnings, f"The image has no text: {error}. {_AGAIN}"))
    builder = TextBuilder(_MAX_CHARS)
    builder.add(text.strip())
    return replace(document, text=builder.text())


async def _read(document: ParsedDocument, path: Path, reader: PictureReader) -> str:
    if document.media_type not in _MEDIA_TYPES:
        raise PictureUnreadable(f"the model does not read {document.media_type}")
    content = await asyncio.to_thread(path.read_bytes)
    if len(content) > _MAX_MB * MEGABYTE:
        raise PictureUnreadable(f"the model reads at most {_MAX_MB} MB")
    return await reader.read(content, document.media_type)


def pages_without_text(document: ParsedDocument) -> list[int]:
    """Returns the pages that have no line, from 1."""
    ends = (*document.page_starts, document.total_lines + 1)
    return [page for page, (start, end) in enumerate(pairwise(ends), 1) if start == end]


async def with_text_of_pages(
    document: ParsedDocument, draw: Draw, reader: PictureReader, max_chars: int
) -> ParsedDocument:
    """Returns a document with the text that a model reads from its pages without text, at most MAX_PAGES of them.

    Args:
        document: The document, with pages.
        draw: Draws its pages.
        reader: The model.
        max_chars: The limit of characters of the text.
    """
    empty = pages_without_text(document)
    pages = empty[:MAX_PAGES]
    read: dict[int, str] = {}
    cause = ""
    for start in range(0, len(pages), PAGES_AT_ONCE):
        some = pages[start : start + PAGES_AT_ONCE]
        drawn = await draw(some)
        answers = await asyncio.gather(*(_read_page(picture, reader) for picture in drawn))
        read |= {page: text for page, (text, _) in zip(some, answers, strict=True) if text}
        cause = cause or next((problem for _, problem in answers if problem), "")
        if cause and not read:
            break  # a model that cannot be reached is not asked for each page
    is_complete = len(read) == len(empty)
    warnings = [text for text in document.warnings if not (is_complete and text.startswith(PAGES_WITHOUT_TEXT))]
    if read:
        warnings.append(f"A model read the text of pages that are images: {len(read):,}.")
    if cause:
        warnings.append(f"Pages that are images have no text: {cause}. {_AGAIN}")
    return _with_pages(replace(document, warnings=tuple(warnings)), read, max_chars)


async def _read_page(picture: bytes, reader: PictureReader) -> tuple[str, str]:
    """Returns the text of a page, or the reason why it has none."""
    if not picture:
        return "", "a page cannot be drawn"
    try:
        return (await reader.read(picture, "image/jpeg")).strip(), ""
    except PictureUnreadable as error:
        return "", str(error)


def _with_pages(document: ParsedDocument, texts: Mapping[int, str], max_chars: int) -> ParsedDocument:
    """Returns the document with the texts of some pages, and the first lines of the pages after them moved."""
    if not texts:
        return document
    builder = TextBuilder(max_chars)
    ends = (*document.page_starts, document.total_lines + 1)
    for page, (start, end) in enumerate(pairwise(ends), 1):
        builder.begin_page()
        builder.add(texts.get(page, "\n".join(document.lines[start - 1 : end - 1]).rstrip("\n")))
    return replace(document, text=builder.text(), page_starts=builder.page_starts())


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
