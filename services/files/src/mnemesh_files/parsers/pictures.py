"""The text of images, and of pages that are images, by a model that can see."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from mnemesh_files.parsers.document import PAGES_WITHOUT_TEXT, ParsedDocument
from mnemesh_files.parsers.limits import MEGABYTE
from mnemesh_files.parsers.lines import TextBuilder
from mnemesh_files.ports.pictures import PictureReader, PictureUnreadable

MAX_PAGES: Final = 100
"""The number of pages of one document that a model reads."""
PAGES_AT_ONCE: Final = 4
_MEDIA_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
_MAX_MB: Final = 20
_MAX_CHARS: Final = 100_000
_AGAIN: Final = "Process the file again to try again."

Draw = Callable[[Sequence[int]], Awaitable[Sequence[bytes]]]
"""Draws pages, which count from 1, as JPEG; b"" for a page that cannot be drawn."""


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
