"""OpenDocument files: texts (odt), the rows of each sheet (ods), the texts and notes of each slide (odp)."""

from collections.abc import Iterator
from typing import Final

from lxml import etree

from mnemesh_files.parsers.document import (
    MAX_VERBATIM_LINE,
    Budget,
    Cause,
    DocumentKind,
    DocumentUnreadable,
    ParsedDocument,
    TextBuilder,
)
from mnemesh_files.parsers.inside.archive import Archive, damaged, element, text_of

_MAX_SPACES: Final = 100
_MAX_LEVEL: Final = 6
_LATE_ROWS: Final = 500
# Comments, texts that were deleted under tracked changes, and forms.
_LEFT_OUT: Final = frozenset({"annotation", "annotation-end", "tracked-changes", "forms", "notes"})


def parse(_: bytes, archive: Archive, __: str, budget: Budget) -> ParsedDocument:
    """Returns the document of an odt, ods or odp file. Each sheet and each slide is a page.

    Raises:
        DocumentUnreadable: It is encrypted, damaged, or another kind of OpenDocument file.
    """
    stated = archive.read("mimetype").decode("ascii", "replace").strip()[:200]
    if "opendocument" not in stated:
        raise DocumentUnreadable(Cause.UNSUPPORTED, "The file is a ZIP archive. Upload the files in it one by one.")
    manifest = "META-INF/manifest.xml"
    if manifest in archive.names and next(element(archive.read(manifest)).iter("{*}encryption-data"), None) is not None:
        raise DocumentUnreadable(Cause.ENCRYPTED, "The document is encrypted. Remove its password and upload it again.")
    body = next(element(archive.read("content.xml")).iter("{*}body"), None)
    content = None if body is None else next((each for each in body if _name(each) in _READERS), None)
    if content is None:
        raise damaged("it has no text, no sheets and no slides")
    title = text_of(element(archive.read("meta.xml")), "title")[:300] if "meta.xml" in archive.names else ""
    return _READERS[_name(content)](content, stated, title, budget)


def _text_document(content: etree._Element, media_type: str, title: str, budget: Budget) -> ParsedDocument:
    text = budget.builder()
    _add_blocks(content, text, budget)
    budget.warn_if_full(text)
    return ParsedDocument(DocumentKind.PROSE, media_type, text.text(), title=title)


def _workbook(content: etree._Element, media_type: str, title: str, budget: Budget) -> ParsedDocument:
    text = budget.builder(MAX_VERBATIM_LINE)
    names: list[str] = []
    sheets = [each for each in content if _name(each) == "table"]
    rows_left = budget.limits.rows
    for number, sheet in enumerate(sheets[: budget.pages_to_read(len(sheets), "sheets")], 1):
        if budget.is_late:
            budget.warn_late(number, len(sheets), "sheets")
            break
        text.begin_page()
        names.append(" ".join((_attribute(sheet, "name") or f"Sheet {number}").split())[:300])
        text.add(f"## {names[-1]}")
        text.add("")
        rows_left = _add_rows(sheet, text, rows_left, budget)
    budget.warn_if_full(text)
    return ParsedDocument(
        DocumentKind.DATA,
        media_type,
        text.text(),
        title=title,
        page_starts=text.page_starts(),
        page_names=tuple(names),
        total_pages=len(sheets),
    )


def _presentation(content: etree._Element, media_type: str, title: str, budget: Budget) -> ParsedDocument:
    text = budget.builder()
    names: list[str] = []
    slides = [each for each in content if _name(each) == "page"]
    for number, slide in enumerate(slides[: budget.pages_to_read(len(slides), "slides")], 1):
        if budget.is_late:
            budget.warn_late(number, len(slides), "slides")
            break
        text.begin_page()
        names.append(" ".join((_attribute(slide, "name") or "").split())[:300])
        text.add(f"## {names[-1] or f'Slide {number}'}")
        text.add_blank()
        _add_blocks(slide, text, budget)
        notes = [line for each in slide if _name(each) == "notes" for line in _paragraphs(each)]
        if notes:
            text.add_blank()
            text.add("Notes:")
            text.add_all(notes)
    budget.warn_if_full(text)
    return ParsedDocument(
        DocumentKind.PROSE,
        media_type,
        text.text(),
        title=title,
        page_starts=text.page_starts(),
        page_names=tuple(names),
        total_pages=len(slides),
    )


_READERS: Final = {"text": _text_document, "spreadsheet": _workbook, "presentation": _presentation}


def _add_blocks(parent: etree._Element, text: TextBuilder, budget: Budget, level: int = 0) -> None:
    """Adds the headings, paragraphs, lists and tables below an element."""
    for each in parent:
        if text.is_full or budget.is_late:
            return
        match _name(each):
            case "h":
                depth = _number(each, "outline-level", 1, _MAX_LEVEL)
                text.add_blank()
                text.add(f"{'#' * depth} {' '.join(_inline(each).split())}")
                text.add_blank()
            case "p":
                text.add_all(_inline(each).split("\n"))
                text.add_blank()
            case "list":
                for item in each:
                    _add_item(item, text, budget, level)
                if level == 0:
                    text.add_blank()
            case "table":
                text.add_blank()
                _add_rows(each, text, budget.limits.rows, budget)
                text.add_blank()
            case name if name not in _LEFT_OUT:
                _add_blocks(each, text, budget, level)


def _add_item(item: etree._Element, text: TextBuilder, budget: Budget, level: int) -> None:
    marker = "- "
    for each in item:
        if _name(each) == "list":
            for nested in each:
                _add_item(nested, text, budget, level + 1)
        elif line := " ".join(_inline(each).split()):
            text.add(f"{'  ' * level}{marker}{line}")
            marker = "  "


def _add_rows(table: etree._Element, text: TextBuilder, rows_left: int, budget: Budget) -> int:
    """Adds the rows of a table that are not empty, and returns how many rows may still be added."""
    columns = budget.limits.columns
    for number, row in enumerate(table.iter("{*}table-row"), 1):
        if number % _LATE_ROWS == 0 and (budget.is_late or text.is_full):
            budget.warn(f"Rows of a table from {number:,} on were left out: reading them takes too long.")
            return rows_left
        cells: list[str] = []
        for cell in row:
            if _name(cell) not in ("table-cell", "covered-table-cell"):
                continue
            value = " ".join(" ".join(_paragraphs(cell)).split()) or _attribute(cell, "value") or ""
            cells += [value] * _number(cell, "number-columns-repeated", 1, columns + 1)
        while cells and not cells[-1]:
            cells.pop()
        if not cells:
            continue
        if len(cells) > columns:
            budget.warn(f"Columns beyond the limit of {columns:,} columns were left out.")
        line = " | ".join(cells[:columns])
        for _ in range(_number(row, "number-rows-repeated", 1, rows_left + 1)):
            if rows_left == 0:
                budget.warn(f"Rows beyond the limit of {budget.limits.rows:,} rows were left out.")
                return 0
            rows_left -= 1
            text.add(line)
            if text.is_full:
                return rows_left
    return rows_left


def _paragraphs(parent: etree._Element) -> Iterator[str]:
    """Yields the paragraphs of a cell or of notes that are not empty."""
    for each in parent.iter("{*}p", "{*}h"):
        if line := " ".join(_inline(each).split()):
            yield line


def _inline(parent: etree._Element) -> str:
    """Returns the text of a paragraph, with its spaces, tabs and line breaks."""
    parts = [parent.text or ""]
    for each in parent:
        match _name(each):
            case "s":
                parts.append(" " * _number(each, "c", 1, _MAX_SPACES))
            case "tab":
                parts.append("\t")
            case "line-break":
                parts.append("\n")
            case "note":
                parts.append(f" [{' '.join(' '.join(_paragraphs(each)).split())}]")
            case name if name not in _LEFT_OUT:
                parts.append(_inline(each))
                if name in ("p", "h"):
                    parts.append(" ")
        parts.append(each.tail or "")
    return "".join(parts)


def _name(each: etree._Element) -> str:
    """Returns the name of an element without its namespace; "" for comments and instructions."""
    return etree.QName(each).localname if isinstance(each.tag, str) else ""


def _attribute(each: etree._Element, local_name: str) -> str | None:
    """Returns an attribute in any namespace."""
    return next((str(value) for name, value in each.attrib.items() if str(name).rpartition("}")[2] == local_name), None)


def _number(each: etree._Element, local_name: str, default: int, most: int) -> int:
    """Returns an attribute as a number from 1 to `most`."""
    value = _attribute(each, local_name) or ""
    return max(1, min(int(value), most)) if value.isdecimal() and len(value) < 12 else min(default, most)
