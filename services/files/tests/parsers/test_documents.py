"""The parsers of documents: texts of good ones."""

import pytest
from mnemesh_files.parsers.document import DocumentKind, ParsedDocument

from . import documents
from .parsing import parsed_from

_OFFICE = "application/vnd.openxmlformats-officedocument."


def test_word_document() -> None:
    parsed = parsed_from(documents.word(), "lies.txt")

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
    text = parsed_from(documents.word_with_footnote()).text

    assert text.startswith("Text[[1]]")
    assert "The note." in text.split("\n")[-1]


def test_workbook() -> None:
    parsed = parsed_from(documents.workbook())

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
    parsed = parsed_from(documents.presentation())

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
    parsed = parsed_from(documents.pdf())

    assert parsed.lines == ("First page.", "It has two lines.", "", "Third page.")
    assert (parsed.page_starts, parsed.total_pages, parsed.title) == ((1, 4, 4), 3, "A paper")
    assert [parsed.page_of(line) for line in (1, 2, 3, 4)] == [1, 1, 1, 3]
    assert parsed.warnings == ("Pages without text, such as scanned images: 2.",)


def test_book() -> None:
    parsed = parsed_from(documents.book())

    assert parsed.lines == ("# Night", "", "It was dark & cold.", "", "# Day", "", "It was léger.")
    assert (parsed.title, parsed.media_type) == ("A book", "application/epub+zip")


def test_html() -> None:
    source = """<!doctype html><html><head><title>A &amp; b</title><style>p {}</style><script>run()</script></head>
        <body><h2>Größe</h2><p>One <a href="https://example.org/x">link</a>,
        one line.<p>Next.<ul><li>a<ul><li>b</ul><li>c</ul><pre>  code
    kept</pre><img src="data:image/png;base64,AAAA" alt="A picture"><img src="data:image/png;base64,AAAA">
        <table><tr><th>k<th>v<tr><td>1<td>2</table>"""
    parsed = parsed_from(source.replace("<head>", "<head><meta charset=iso-8859-1>").encode("latin-1"))

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
    assert parsed_from(documents.image(kind), "picture.txt") == ParsedDocument(
        DocumentKind.IMAGE, media_type, image_width=30, image_height=20
    )


def test_names_of_parts_are_no_paths() -> None:
    content = documents.with_parts(documents.word(), {"../../etc/x": b"x", "/absolute": b"x", "word/..\\x": b"x"})

    assert parsed_from(content).text == parsed_from(documents.word()).text


def test_hidden_characters_of_a_document_are_reported() -> None:
    parsed = parsed_from("<html><p>a\u202eb שלום\u200b".encode())

    assert parsed.text == "a\u202eb שלום\u200b"
    assert parsed.warnings == ("The text contains 1 invisible characters that reverse or hide text. They were kept.",)


def test_text_of_html_without_an_encoding() -> None:
    parsed = parsed_from(b"<html><p>a\0b\x01\x02 <p>" + "über".encode() * 50 + b"\xff<p>\xed\xa0\x80")

    assert parsed.lines[0] == "a\ufffdb\ufffd\ufffd"
    assert "über" in parsed.text
    assert parsed.encoding == "utf-8"
    assert len(parsed.warnings) == 2
