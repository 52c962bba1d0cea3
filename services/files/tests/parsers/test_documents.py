"""The parsers of documents: texts of good ones, and what becomes of damaged and hostile ones."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from mnemesh_files.parsers.detection import detect
from mnemesh_files.parsers.document import DocumentKind, ParsedDocument
from mnemesh_files.parsers.errors import Cause
from mnemesh_files.parsers.inside.entry import parse
from mnemesh_files.parsers.limits import DEFAULT_LIMITS, ParseLimits

from . import documents

_OFFICE = "application/vnd.openxmlformats-officedocument."


def _answer(content: bytes, name: str = "document", limits: ParseLimits = DEFAULT_LIMITS) -> dict[str, Any]:
    detected = detect(content, name)
    answer: dict[str, Any] = json.loads(
        parse(content, detected.format.value, detected.file_type.media_type, limits.to_values())
    )
    return answer


def _parsed(content: bytes, name: str = "document", **limits: Any) -> ParsedDocument:
    answer = _answer(content, name, replace(DEFAULT_LIMITS, **limits))
    assert "document" in answer, answer
    return ParsedDocument.from_value(answer["document"])


def _refused(content: bytes, name: str = "document", **limits: Any) -> tuple[Cause, str]:
    answer = _answer(content, name, replace(DEFAULT_LIMITS, **limits))
    assert "message" in answer, answer
    return Cause(answer["cause"]), answer["message"]


def test_word_document() -> None:
    parsed = _parsed(documents.word(), "lies.txt")

    sentences = [f"This is sentence {number} of a long paragraph." for number in range(20)]
    assert parsed.lines[:16] == (
        "# The year",
        "",
        "# Results",
        "",
        "Sales were **good**.",
        "",
        "- first",
        "- second",
        "",
        "1. one",
        "2. two",
        "",
        "| Region | Amount |",
        "| --- | --- |",
        "| North | 7 |",
        "",
    )
    assert " ".join(parsed.lines[16:]) == " ".join(sentences)
    assert all(len(line) <= 500 and line.endswith("paragraph.") for line in parsed.lines[16:])
    assert (parsed.title, parsed.kind) == ("Annual report", DocumentKind.PROSE)
    assert parsed.media_type == f"{_OFFICE}wordprocessingml.document"
    assert parsed.page_starts == ()


def test_footnotes_follow_the_text() -> None:
    text = _parsed(documents.word_with_footnote()).text

    assert text.startswith("Text[[1]]")
    assert "The note." in text.split("\n")[-1]


def test_workbook() -> None:
    parsed = _parsed(documents.workbook())

    assert parsed.lines == (
        "## Sales",
        "",
        "Region | Amount | Day | Done",
        "North | 1234.5 | 2026-01-02 | TRUE",
        "South | 3 | 2026-01-02 03:04:00 |  | two lines",
        " | 0.3 | 04:05:00",
        "",
        "## Empty",
        "",
        "## Secret (hidden)",
        "",
        " | x",
    )
    assert parsed.page_starts == (1, 8, 10)
    assert parsed.page_names == ("Sales", "Empty", "Secret")
    assert (parsed.title, parsed.total_pages, parsed.kind) == ("Figures", 3, DocumentKind.DATA)


def test_presentation() -> None:
    parsed = _parsed(documents.presentation())

    assert parsed.lines == (
        "## Goals",
        "",
        "grow",
        "  - slowly",
        "",
        "Notes:",
        "Say it twice.",
        "",
        "## Numbers",
        "",
        "a | b",
        "1 | 2",
        "",
        "## Slide 3",
    )
    assert parsed.page_starts == (1, 9, 14)
    assert parsed.page_names == ("Goals", "Numbers", "")
    assert parsed.title == "Plans"


def test_pdf() -> None:
    parsed = _parsed(documents.pdf())

    assert parsed.lines == ("First page.", "It has two lines.", "", "Third page.")
    assert (parsed.page_starts, parsed.total_pages, parsed.title) == ((1, 4, 4), 3, "A paper")
    assert [parsed.page_of(line) for line in (1, 2, 3, 4)] == [1, 1, 1, 3]
    assert parsed.warnings == ("Pages without text, such as scanned images: 2.",)


def test_book() -> None:
    parsed = _parsed(documents.book())

    assert parsed.lines == ("# Night", "", "It was dark & cold.", "", "# Day", "", "It was léger.")
    assert (parsed.title, parsed.media_type) == ("A book", "application/epub+zip")


def test_html() -> None:
    source = """<!doctype html><html><head><title>A &amp; b</title><style>p {}</style><script>run()</script></head>
        <body><h2>Größe</h2><p>One <a href="https://example.org/x">link</a>,
        one line.<p>Next.<ul><li>a<ul><li>b</ul><li>c</ul><pre>  code
    kept</pre><img src="data:image/png;base64,AAAA" alt="A picture"><img src="data:image/png;base64,AAAA">
        <table><tr><th>k<th>v<tr><td>1<td>2</table>"""
    parsed = _parsed(source.replace("<head>", "<head><meta charset=iso-8859-1>").encode("latin-1"))

    assert (parsed.title, parsed.encoding, parsed.media_type) == ("A & b", "cp1252", "text/html")
    for expected in (
        "## Größe",
        "One [link](https://example.org/x), one line.",
        "- a\n  - b\n- c",
        "  code\n    kept",
        "![A picture]\n",
        "| k | v |\n| --- | --- |\n| 1 | 2 |",
    ):
        assert expected in f"{parsed.text}\n"
    for left_out in ("run()", "p {}", "base64", "![]"):
        assert left_out not in parsed.text


@pytest.mark.parametrize(
    ("kind", "media_type"),
    [
        ("PNG", "image/png"),
        ("JPEG", "image/jpeg"),
        ("GIF", "image/gif"),
        ("WEBP", "image/webp"),
        ("TIFF", "image/tiff"),
    ],
)
def test_image(kind: str, media_type: str) -> None:
    assert _parsed(documents.image(kind), "picture.txt") == ParsedDocument(
        DocumentKind.IMAGE, media_type, image_width=30, image_height=20
    )


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
    cause, message = _refused(content[: len(content) // 2])

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
    cause, message = _refused(documents.with_parts(_GOOD[kind](), {part: change}))

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

    cause, message = _refused(documents.with_parts(_GOOD[kind](), {part: changed}))

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

    cause, message = _refused(content)

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
        (lambda: b"<html>" + bytes(range(256)) * 10, {}, Cause.UNSUPPORTED, "is no text"),
    ],
)
def test_a_document_that_cannot_be_read_is_refused_with_the_cause(
    content: Any, limits: dict[str, int], cause: Cause, words: str
) -> None:
    found, message = _refused(content(), **limits)

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
    parsed = _parsed(content(), **limits)

    assert warning in parsed.warnings
    assert parsed.total_lines == lines
    assert all(1 <= start <= parsed.total_lines + 1 for start in parsed.page_starts)


def test_names_of_parts_are_no_paths() -> None:
    content = documents.with_parts(documents.word(), {"../../etc/x": b"x", "/absolute": b"x", "word/..\\x": b"x"})

    assert _parsed(content).text == _parsed(documents.word()).text


def test_a_sheet_with_too_many_columns() -> None:
    row = b"<row>" + b"".join(b"<c><v>%d</v></c>" % number for number in range(2_000)) + b"</row>"
    parsed = _parsed(documents.sheet(row))

    assert "Columns beyond the limit of 500 columns were left out." in parsed.warnings
    assert parsed.lines[2] == " | ".join(map(str, range(500)))


def test_hidden_characters_of_a_document_are_reported() -> None:
    parsed = _parsed("<html><p>a\u202eb שלום\u200b".encode())

    assert parsed.text == "a\u202eb שלום\u200b"
    assert parsed.warnings == ("The text contains 1 invisible characters that reverse or hide text. They were kept.",)


def test_text_of_html_without_an_encoding() -> None:
    parsed = _parsed(b"<html><p>a\0b\x01\x02 <p>" + "über".encode() * 50 + b"\xff<p>\xed\xa0\x80")

    assert parsed.lines[0] == "a\ufffdb\ufffd\ufffd"
    assert "über" in parsed.text
    assert parsed.encoding == "utf-8"
    assert len(parsed.warnings) == 2
