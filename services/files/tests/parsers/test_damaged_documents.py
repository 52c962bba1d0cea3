"""The parsers of documents: what becomes of damaged, hostile and too large ones."""

from typing import Any

import pytest
from mnemesh_files.parsers.document import Cause

from . import documents
from .parsing import parsed_from, refusal_of

_GOOD = {
    "docx": documents.word,
    "xlsx": documents.workbook,
    "pptx": documents.presentation,
    "epub": documents.book,
    "pdf": documents.pdf,
    "png": lambda: documents.image("PNG"),
    "jpeg": lambda: documents.image("JPEG"),
}


@pytest.mark.parametrize("kind", _GOOD)
def test_half_a_document_is_damaged(kind: str) -> None:
    content = _GOOD[kind]()
    cause, message = refusal_of(content[: len(content) // 2])

    assert cause is Cause.DAMAGED
    assert "damaged" in message


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("docx", "word/document.xml"),
        ("xlsx", "[Content_Types].xml"),
        ("xlsx", "xl/workbook.xml"),
        ("pptx", "ppt/slides/slide1.xml"),
    ],
)
@pytest.mark.parametrize("change", [lambda part: part[:-20], lambda _: b"", None])
def test_a_damaged_or_missing_part_is_named_as_damage(kind: str, part: str, change: Any) -> None:
    cause, message = refusal_of(documents.with_parts(_GOOD[kind](), {part: change}))

    assert cause is Cause.DAMAGED
    assert message.startswith("The document is damaged: ")


@pytest.mark.parametrize(
    ("kind", "part", "old", "new"),
    [
        ("xlsx", "xl/styles.xml", b"<xf ", b'<xf unknown="1" '),
        ("xlsx", "[Content_Types].xml", b"ContentType=", b"contentType="),
        ("pptx", "ppt/_rels/presentation.xml.rels", b"<Relationships", b"<Other"),
        ("pptx", "ppt/_rels/presentation.xml.rels", b"Target=", b"target="),
    ],
)
def test_a_part_with_another_content_is_named_as_damage(kind: str, part: str, old: bytes, new: bytes) -> None:
    def changed(content: bytes) -> bytes:
        assert old in content
        return content.replace(old, new).replace(old.replace(b"<", b"</"), new.replace(b"<", b"</"))

    cause, message = refusal_of(documents.with_parts(_GOOD[kind](), {part: changed}))

    assert cause is Cause.DAMAGED
    assert message.startswith("The document is damaged: ")


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("docx", "word/document.xml"),
        ("xlsx", "xl/workbook.xml"),
        ("pptx", "ppt/slides/slide1.xml"),
        ("epub", "OEBPS/book.opf"),
    ],
)
def test_entities_are_refused_before_they_are_expanded(kind: str, part: str) -> None:
    content = documents.with_parts(_GOOD[kind](), {part: lambda old: documents.entities("x", old)})

    cause, message = refusal_of(content)

    assert cause is Cause.DAMAGED
    assert message.startswith("The document declares XML entities or document types, which its format forbids.")


@pytest.mark.parametrize(
    ("content", "limits", "cause", "words"),
    [
        (
            lambda: documents.with_parts(documents.word(), {"word/document.xml": b" " * 20_000_000}),
            {},
            Cause.TOO_LARGE,
            "expands more than 200 times, as a decompression bomb does",
        ),
        (documents.word, {"expanded_mb": 0}, Cause.TOO_LARGE, "expands to 0 MB; at most 0 MB are read"),
        (documents.word, {"archive_entries": 3}, Cause.TOO_LARGE, "parts; at most 3 are read"),
        (
            lambda: documents.with_parts(documents.word(), {"word/document.xml": None}),
            {},
            Cause.DAMAGED,
            "its main part is missing",
        ),
        (
            lambda: documents.with_parts(
                documents.word(),
                {
                    "word/document.xml": documents.word_body(
                        b"<w:tbl><w:tr><w:tc>" * 500 + b"<w:p/>" + b"</w:tc></w:tr></w:tbl>" * 500
                    )
                },
            ),
            {},
            Cause.TOO_LARGE,
            "nested too deeply",
        ),
        (
            lambda: documents.with_parts(documents.book(), {"OEBPS/book.opf": b"<package/>"}),
            {},
            Cause.DAMAGED,
            "it has no chapters",
        ),
        (
            lambda: documents.with_parts(documents.book(), {"META-INF/rights.xml": b"<x/>"}),
            {},
            Cause.ENCRYPTED,
            "protected against copying",
        ),
        (lambda: documents.pdf("secret"), {}, Cause.ENCRYPTED, "Remove the password and upload it again"),
        (lambda: b"%PDF-1.4 and nothing else", {}, Cause.DAMAGED, "The PDF is damaged"),
        (lambda: documents.archive({"a.txt": b"x"}), {}, Cause.UNSUPPORTED, "Upload the files in it one by one"),
        (
            lambda: documents.archive({"mimetype": b"application/vnd.oasis.opendocument.text", "content.xml": b"<x/>"}),
            {},
            Cause.DAMAGED,
            "no text, no sheets and no slides",
        ),
        (lambda: documents.opendocument("text", "", encrypted=True), {}, Cause.ENCRYPTED, "Remove its password"),
        (
            lambda: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le"),
            {},
            Cause.ENCRYPTED,
            "The document is encrypted",
        ),
        (lambda: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", {}, Cause.UNSUPPORTED, "Office before 2007"),
        (lambda: documents.png_of(60_000, 60_000), {}, Cause.TOO_LARGE, "60,000 × 60,000 pixels"),
        (lambda: b"<!doctype html>" + b"<div>" * 50_000 + b"x", {}, Cause.TOO_LARGE, "nested too deeply"),
        (lambda: b"<html>" + bytes(range(256)) * 10, {}, Cause.UNSUPPORTED, "is not text"),
    ],
)
def test_a_document_that_cannot_be_read_is_refused_with_the_cause(
    content: Any, limits: dict[str, int], cause: Cause, words: str
) -> None:
    found, message = refusal_of(content(), **limits)

    assert found is cause
    assert words in message


@pytest.mark.parametrize(
    ("content", "limits", "lines", "warning"),
    [
        (documents.pdf, {"pages": 1}, 2, "Pages 2 to 3 are beyond the limit of 1 pages."),
        (documents.pdf, {"seconds": 0}, 0, "Pages 1 to 3 were left out: reading them takes too long."),
        (documents.pdf, {"document_characters": 12}, 1, "The text has more than 12 characters. The rest was left out."),
        (
            documents.pdf_with_loop,
            {},
            0,
            "Pages that are damaged and were left out: 2.",
        ),
        (documents.workbook, {"pages": 1}, 6, "Sheets 2 to 3 are beyond the limit of 1 sheets."),
        (documents.workbook, {"rows": 2}, 8, "Rows beyond the limit of 2 rows were left out."),
        (documents.workbook, {"columns": 3}, 12, "Columns beyond the limit of 3 columns were left out."),
        (documents.presentation, {"pages": 2}, 12, "Slides 3 to 3 are beyond the limit of 2 slides."),
        (documents.book, {"seconds": 0}, 0, "Chapters 1 to 2 were left out: reading them takes too long."),
        (
            lambda: documents.with_parts(documents.book(), {"OEBPS/2.xhtml": None}),
            {},
            3,
            "Chapters that are missing or damaged: 1.",
        ),
        (
            lambda: documents.sheet(
                b'<row r="1"><c r="A1"><v>1</v></c></row><row r="2"><c r="ZZZZZ2"><v>1</v></c></row>'
            ),
            {},
            9,
            'The sheet "Sales" is damaged. Its rows from the damage on were left out.',
        ),
        (
            lambda: documents.sheet(b'<row r="900000"><c r="A900000"><v>1</v></c></row>'),
            {},
            7,
            'The sheet "Sales" has many empty rows. Rows from 10,001 on were left out.',
        ),
    ],
)
def test_a_part_that_cannot_be_read_is_left_out_with_a_warning(
    content: Any, limits: dict[str, Any], lines: int, warning: str
) -> None:
    parsed = parsed_from(content(), **limits)

    assert warning in parsed.warnings
    assert parsed.total_lines == lines
    assert all(1 <= start <= parsed.total_lines + 1 for start in parsed.page_starts)


def test_a_sheet_with_too_many_columns() -> None:
    row = b"<row>" + b"".join(b"<c><v>%d</v></c>" % number for number in range(2_000)) + b"</row>"
    parsed = parsed_from(documents.sheet(row))

    assert "Columns beyond the limit of 500 columns were left out." in parsed.warnings
    assert parsed.lines[2] == " | ".join(map(str, range(500)))
