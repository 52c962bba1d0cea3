"""Parses text files in the service itself: text, Markdown, code and data need no library that reads structure."""

import json
import re
from pathlib import Path
from typing import Final

from mnemesh_files.parsers.document import (
    MAX_VERBATIM_LINE,
    Cause,
    DocumentKind,
    DocumentUnreadable,
    ParsedDocument,
    ParseLimits,
    hidden_characters_warning,
    normalized,
    with_divided_lines,
    without_final_line_feed,
)
from mnemesh_files.parsers.encodings import NotText, decode
from mnemesh_files.parsers.formats import REMEDY, FileType

_FORMATTED_JSON_CHARS: Final = 2_000_000
_FORMATTED_JSON_GROWTH: Final = 8
_FRONT_MATTER_TITLE: Final = re.compile(r"\A---\n(?:.{0,500}\n){0,50}?title:[ \t]*([^\n]{1,300})\n")
_HEADING: Final = re.compile(r"^#[ \t]+([^\n]{1,300})$", re.MULTILINE)
_TITLE_WITHIN: Final = 10_000


def parse_text_file(path: Path, file_type: FileType, limits: ParseLimits) -> ParsedDocument:
    """Returns the document of a text file. Its lines are those of the file, except those that are too long.

    Blocks.

    Raises:
        DocumentUnreadable: The file is not text.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(limits.text_bytes)
        is_cut = bool(file.read(1))
    try:
        decoded = decode(data, is_cut=is_cut)
    except NotText:
        raise DocumentUnreadable(
            Cause.UNSUPPORTED, f"The file is neither text nor a document that a parser reads. {REMEDY}"
        ) from None
    warnings = list(decoded.warnings)
    if is_cut:
        warnings.append(f"The file has more than {limits.text_bytes:,} bytes. The rest was left out.")
    text = without_final_line_feed(normalized(decoded.text))
    if file_type.media_type in _JSON and (formatted := _formatted(text)) is not None:
        text = formatted
        warnings.append("The JSON has long lines. It was formatted, so its lines are not those of the file.")
    text, divided = with_divided_lines(text, MAX_VERBATIM_LINE)
    if divided:
        warnings.append(
            f"Lines of more than {MAX_VERBATIM_LINE:,} characters: {divided:,}. They were divided, so the numbers of "
            "lines after them are not those of the file."
        )
    warnings.extend(hidden_characters_warning(text))
    return ParsedDocument(
        file_type.kind,
        file_type.media_type,
        text,
        language=file_type.language,
        title=_title(text) if file_type.kind is DocumentKind.PROSE else "",
        encoding=decoded.encoding,
        warnings=tuple(warnings),
    )


_JSON: Final = ("application/json", "application/geo+json", "application/x-ipynb+json")


def _formatted(text: str) -> str | None:
    """Returns JSON with one value per line if it has a line that is too long; None if it cannot be formatted."""
    if len(text) > _FORMATTED_JSON_CHARS or max(map(len, text.split("\n"))) <= MAX_VERBATIM_LINE:
        return None
    parts: list[str] = []
    chars = 0
    try:
        for part in json.JSONEncoder(indent=1, ensure_ascii=False).iterencode(json.loads(text)):
            parts.append(part)
            chars += len(part)
            if chars > len(text) * _FORMATTED_JSON_GROWTH:
                return None  # the indentation of deep nesting
    except (ValueError, RecursionError):
        return None
    return normalized("".join(parts))


def _title(text: str) -> str:
    """Returns the title of a Markdown text: that of its front matter, or its first heading."""
    head = text[:_TITLE_WITHIN]
    found = _FRONT_MATTER_TITLE.match(head) or _HEADING.search(head)
    return found[1].strip().strip("\"'").rstrip("#").strip() if found else ""
