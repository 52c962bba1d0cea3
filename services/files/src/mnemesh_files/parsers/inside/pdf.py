"""PDF documents: the text of each page, in lines as printed."""

import base64
import io
import json
import re
from pathlib import Path
from typing import Final

from mnemesh_files.parsers.document import (
    PAGES_WITHOUT_TEXT,
    Budget,
    Cause,
    DocumentKind,
    DocumentUnreadable,
    ParsedDocument,
    TextBuilder,
)

# The library resolves the path of its own file. Below a directory that only root can enter, the result is a path that
# the parser's account cannot open; the path through the descriptor of the directory is one that it can.
_resolve = Path.resolve
Path.resolve = lambda path, strict=False: path.absolute()  # type: ignore[method-assign, assignment]  # noqa: ARG005
try:
    import pypdfium2 as pdfium
finally:
    Path.resolve = _resolve  # type: ignore[method-assign]

_HYPHEN_AT_END: Final = re.compile("[\ufffe\x02\u00ad]\r?\n")
_UNMAPPED: Final = re.compile("[\ufffe\uffff\x00\x02\x03]")
_PASSWORD: Final = "password"  # noqa: S105 - a word in an error of the library
_MAX_TITLE: Final = 300

_LONGEST_SIDE: Final = 1_600
_QUALITY: Final = 75


def parse(content: bytes, media_type: str, budget: Budget) -> ParsedDocument:
    """Returns the document of a PDF file.

    Raises:
        DocumentUnreadable: It is encrypted or damaged.
    """
    try:
        pdf = pdfium.PdfDocument(content)
        total = len(pdf)
    except pdfium.PdfiumError as error:
        if _PASSWORD in str(error).lower():
            text = "The PDF needs a password. Remove the password and upload it again."
            raise DocumentUnreadable(Cause.ENCRYPTED, text) from error
        text = "The PDF is damaged. Open it in a viewer, and print it to a new PDF."
        raise DocumentUnreadable(Cause.DAMAGED, text) from error
    pages = _Pages(budget)
    pages.read(pdf, total)
    return ParsedDocument(
        DocumentKind.PROSE,
        media_type,
        pages.text.text(),
        title=_title(pdf),
        page_starts=pages.text.page_starts(),
        total_pages=total,
    )


class _Pages:
    """The text of the pages."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.text = budget.builder()
        self._unreadable: list[int] = []
        self._without_text: list[int] = []

    def read(self, pdf: pdfium.PdfDocument, total: int) -> None:
        """Reads the pages within the limits."""
        for index in range(self._budget.pages_to_read(total, "pages")):
            if self._budget.is_late:
                self._budget.warn_late(index + 1, total, "pages")
                break
            if self.text.is_full:
                break
            self.text.begin_page()
            self._read_page(pdf, index)
        self._budget.warn_if_full(self.text)
        if self._unreadable:
            self._budget.warn(f"Pages that are damaged and were left out: {_ranges(self._unreadable)}.")
        if self._without_text:
            self._budget.warn(f"{PAGES_WITHOUT_TEXT}: {_ranges(self._without_text)}.")

    def _read_page(self, pdf: pdfium.PdfDocument, index: int) -> None:
        try:
            page = pdf[index]
            text_page = page.get_textpage()
            text = text_page.get_text_range()
        except pdfium.PdfiumError:
            self._unreadable.append(index + 1)
            return
        text_page.close()
        page.close()
        if not add_page(text, self.text):
            self._without_text.append(index + 1)


def add_page(page: str, text: TextBuilder) -> bool:
    """Adds the text of a page, with divided words joined, and returns whether it has any."""
    page = _UNMAPPED.sub("", _HYPHEN_AT_END.sub("", page)).strip()
    text.add_all(line.rstrip() for line in page.splitlines())
    return bool(page)


def _title(pdf: pdfium.PdfDocument) -> str:
    try:
        title = pdf.get_metadata_value("Title")
    except (pdfium.PdfiumError, UnicodeError):
        return ""
    return " ".join(title.replace("\0", "").encode("utf-8", "replace").decode().split())[:_MAX_TITLE]


def _ranges(numbers: list[int]) -> str:
    """Returns ascending numbers as text: "1 to 3, 7"."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    shown = [str(first) if first == last else f"{first} to {last}" for first, last in ranges[:20]]
    return ", ".join(shown) + (" and others" if len(ranges) > len(shown) else "")


def page_pictures(content: bytes, pages: list[int]) -> str:
    """Returns a JSON list of pages as JPEG in base64; "" for a page that cannot be drawn.

    Args:
        content: The PDF.
        pages: The numbers of the pages, from 1.
    """
    pdf = pdfium.PdfDocument(content)
    return json.dumps([_picture(pdf, page - 1) for page in pages])


def _picture(pdf: pdfium.PdfDocument, index: int) -> str:
    try:
        page = pdf[index]
        longest = max(page.get_size())
        if not longest > 0:  # also if it is not a number
            return ""
        image = page.render(scale=_LONGEST_SIDE / longest).to_pil().convert("RGB")
    except (pdfium.PdfiumError, ValueError, OverflowError):
        return ""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY)
    return base64.b64encode(buffer.getvalue()).decode()
