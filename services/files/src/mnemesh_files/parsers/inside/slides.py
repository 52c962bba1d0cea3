"""Presentations (pptx): the texts, tables and notes of each slide."""

import io
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pptx
from pptx.exc import PythonPptxError
from pptx.util import Length

from mnemesh_files.parsers.document import Budget, DocumentKind, DocumentUnreadable, ParsedDocument, TextBuilder
from mnemesh_files.parsers.inside.archive import Archive, damaged
from mnemesh_files.parsers.inside.word import core_title

_MAX_GROUPS: Final = 20


def parse(content: bytes, archive: Archive, media_type: str, budget: Budget) -> ParsedDocument:
    """Returns the document of a pptx file. Each slide is a page.

    Raises:
        DocumentUnreadable: Its list of slides is damaged.
    """
    try:
        slides = list(pptx.Presentation(io.BytesIO(content)).slides)
    except (PythonPptxError, AttributeError, ValueError) as error:
        raise damaged("its list of slides cannot be read") from error
    text = budget.builder()
    names: list[str] = []
    for number, slide in enumerate(slides[: budget.pages_to_read(len(slides), "slides")], 1):
        if budget.is_late:
            budget.warn_late(number, len(slides), "slides")
            break
        text.begin_page()
        names.append("")
        try:
            names[-1] = _title(slide)
            _add_slide(slide, names[-1] or f"Slide {number}", text, budget)
        except (MemoryError, DocumentUnreadable):
            raise
        except Exception:  # of the library: damage has many forms
            budget.warn(f"Slide {number:,} is damaged. A part of it was left out.")
    budget.warn_if_full(text)
    return ParsedDocument(
        DocumentKind.PROSE,
        media_type,
        text.text(),
        title=core_title(archive),
        page_starts=text.page_starts(),
        page_names=tuple(names),
        total_pages=len(slides),
    )


def _title(slide: Any) -> str:
    title = slide.shapes.title
    return " ".join(title.text_frame.text.split())[:300] if title is not None and title.has_text_frame else ""


def _add_slide(slide: Any, title: str, text: TextBuilder, budget: Budget) -> None:
    text.add(f"## {title}")
    text.add_blank()
    title_id = slide.shapes.title.shape_id if slide.shapes.title is not None else None
    for shape in _in_reading_order(_shapes(slide.shapes, 0, budget)):
        if shape.shape_id != title_id:
            _add_shape(shape, text, budget)
    if slide.has_notes_slide and (frame := slide.notes_slide.notes_text_frame) is not None and frame.text.strip():
        text.add_blank()
        text.add("Notes:")
        text.add_all(paragraph.text for paragraph in frame.paragraphs if paragraph.text.strip())


def _shapes(shapes: Iterable[Any], depth: int, budget: Budget) -> Iterator[Any]:
    for shape in shapes:
        if not hasattr(shape, "shapes"):
            yield shape
        elif depth < _MAX_GROUPS:
            yield from _shapes(shape.shapes, depth + 1, budget)
        else:
            budget.warn("Groups of shapes that are nested too deeply were left out.")


def _in_reading_order(shapes: Iterable[Any]) -> list[Any]:
    """Returns shapes from top to bottom; those beside each other from left to right."""
    return sorted(shapes, key=lambda shape: ((shape.top or Length(0)) // 300_000, shape.left or Length(0)))


def _add_shape(shape: Any, text: TextBuilder, budget: Budget) -> None:
    if getattr(shape, "has_table", False):
        text.add_blank()
        for row in list(shape.table.rows)[: budget.limits.rows]:
            text.add(" | ".join(" ".join(cell.text.split()) for cell in list(row.cells)[: budget.limits.columns]))
        text.add_blank()
    elif getattr(shape, "has_chart", False):
        chart = shape.chart
        if chart.has_title and chart.chart_title.has_text_frame:
            text.add(f"Chart: {' '.join(chart.chart_title.text_frame.text.split())}")
    elif shape.has_text_frame:
        for paragraph in shape.text_frame.paragraphs:
            if paragraph.text.strip():
                indent = "  " * paragraph.level
                text.add(f"{indent}{'- ' if paragraph.level else ''}{' '.join(paragraph.text.split())}")
