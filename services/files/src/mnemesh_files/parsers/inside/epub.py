"""Electronic books (epub): the chapters in reading order, as Markdown."""

import posixpath
from urllib.parse import unquote, urlsplit

from lxml import etree

from mnemesh_files.parsers.document import Budget, Cause, DocumentKind, DocumentUnreadable, ParsedDocument
from mnemesh_files.parsers.formats import NotText, decode
from mnemesh_files.parsers.inside.archive import Archive, damaged, element, text_of
from mnemesh_files.parsers.inside.html import markdown_lines

_TEXT_TYPES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")


def parse(_: bytes, archive: Archive, media_type: str, budget: Budget) -> ParsedDocument:
    """Returns the document of an epub file.

    Raises:
        DocumentUnreadable: It is encrypted or damaged.
    """
    if "META-INF/rights.xml" in archive.names:
        raise DocumentUnreadable(
            Cause.ENCRYPTED, "The book is protected against copying. Upload a book without protection."
        )
    package_name = _package_name(archive)
    package = element(archive.read(package_name))
    text = budget.builder()
    chapters = _chapters(package, posixpath.dirname(package_name))
    missing = 0
    for number, name in enumerate(chapters, 1):
        if budget.is_late:
            budget.warn_late(number, len(chapters), "chapters")
            break
        if text.is_full:
            break
        if name not in archive.names:
            missing += 1
            continue
        try:
            source = decode(archive.read(name)).text
        except NotText:
            missing += 1
            continue
        text.add_blank()
        text.add_all(markdown_lines(source, budget))
    if missing:
        budget.warn(f"Chapters that are missing or damaged: {missing:,}.")
    budget.warn_if_full(text)
    return ParsedDocument(DocumentKind.PROSE, media_type, text.text(), title=text_of(package, "title")[:300])


def _package_name(archive: Archive) -> str:
    for found in element(archive.read("META-INF/container.xml")).iter("{*}rootfile"):
        name = posixpath.normpath(unquote(found.get("full-path") or ""))
        if name in archive.names:
            return name
    raise damaged("its package file is missing")


def _chapters(package: etree._Element, directory: str) -> list[str]:
    """Returns the names of the parts with text, in reading order, each once."""
    items = {
        item.get("id"): urlsplit(item.get("href") or "").path
        for item in package.iter("{*}item")
        if (item.get("media-type") or "").lower() in _TEXT_TYPES
    }
    order = [items[found.get("idref")] for found in package.iter("{*}itemref") if found.get("idref") in items]
    if not order:
        raise damaged("it has no chapters")
    return list(dict.fromkeys(posixpath.normpath(posixpath.join(directory, unquote(href))) for href in order))
