"""Workbooks (xlsx): the rows of each sheet, with the computed values of formulas."""

import io
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from typing import Any, Final

import openpyxl

from mnemesh_files.parsers.document import (
    MAX_VERBATIM_LINE,
    Budget,
    DocumentKind,
    DocumentUnreadable,
    ParsedDocument,
    TextBuilder,
)
from mnemesh_files.parsers.inside.archive import Archive, damaged
from mnemesh_files.parsers.inside.word import core_title

_LATE_ROWS: Final = 500
_MAX_BLANK_ROWS: Final = 10_000


def parse(content: bytes, archive: Archive, media_type: str, budget: Budget) -> ParsedDocument:
    """Returns the document of an xlsx file. Each sheet is a page.

    Raises:
        DocumentUnreadable: Its list of sheets or its styles are damaged.
    """
    try:
        workbook = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True, keep_links=False)
    except (TypeError, ValueError, AttributeError, OSError) as error:
        raise damaged("its list of sheets, or its styles, cannot be read") from error
    text = budget.builder(MAX_VERBATIM_LINE)
    names: list[str] = []
    sheets = workbook.worksheets
    rows_left = budget.limits.rows
    for index, sheet in enumerate(sheets[: budget.pages_to_read(len(sheets), "sheets")]):
        if budget.is_late:
            budget.warn_late(index + 1, len(sheets), "sheets")
            break
        text.begin_page()
        names.append(sheet.title)
        text.add(f"## {sheet.title}" if sheet.sheet_state == "visible" else f"## {sheet.title} (hidden)")
        text.add("")
        try:
            rows_left = _add_rows(sheet, text, rows_left, budget)
        except (MemoryError, DocumentUnreadable):
            raise
        except Exception:  # of the library: damage has many forms
            budget.warn(f'The sheet "{sheet.title}" is damaged. Its rows from the damage on were left out.')
    budget.warn_if_full(text)
    return ParsedDocument(
        DocumentKind.DATA,
        media_type,
        text.text(),
        title=core_title(archive),
        page_starts=text.page_starts(),
        page_names=tuple(names),
        total_pages=len(sheets),
    )


def _add_rows(sheet: Any, text: TextBuilder, rows_left: int, budget: Budget) -> int:
    """Adds the rows of a sheet that are not empty, and returns how many rows may still be added."""
    columns = budget.limits.columns
    blank = 0
    sheet.reset_dimensions()  # files state wrong ones
    for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
        if number % _LATE_ROWS == 0 and (budget.is_late or text.is_full):
            budget.warn(
                f'Rows of the sheet "{sheet.title}" from {number:,} on were left out: reading them takes too long.'
            )
            return rows_left
        line = row_text(row[:columns])
        if len(row) > columns and any(value is not None for value in row[columns:]):
            budget.warn(f"Columns beyond the limit of {columns:,} columns were left out.")
        if not line:
            blank += 1
            if blank > _MAX_BLANK_ROWS:
                budget.warn(f'The sheet "{sheet.title}" has many empty rows. Rows from {number:,} on were left out.')
                return rows_left
            continue
        if rows_left == 0:
            budget.warn(f"Rows beyond the limit of {budget.limits.rows:,} rows were left out.")
            return 0
        blank = 0
        rows_left -= 1
        text.add(line)
    return rows_left


def row_text(values: Sequence[Any]) -> str:
    """Returns the cells of a row with bars between them; "" for an empty row."""
    cells = [cell_text(value) for value in values]
    while cells and not cells[-1]:
        cells.pop()
    return " | ".join(cells)


def cell_text(value: object) -> str:
    """Returns a cell as one line of text."""
    match value:
        case None:
            return ""
        case bool():
            return "TRUE" if value else "FALSE"
        case float() if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
        case float():
            return f"{value:.12g}"
        case datetime() if value.time() == time():
            return value.date().isoformat()
        case datetime():
            return value.isoformat(" ", "seconds")
        case date() | time():
            return value.isoformat()
        case timedelta():
            return str(value)
        case _:
            return " ".join(str(value).split())
