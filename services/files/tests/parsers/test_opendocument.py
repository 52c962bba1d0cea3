"""OpenDocument and RTF files: their texts, and what becomes of hostile ones."""

import pytest
from mnemesh_files.parsers.document import DocumentKind

from . import documents
from .parsing import parsed_from, refusal_of

_OASIS = "application/vnd.oasis.opendocument."


def test_text_document() -> None:
    body = (
        '<text:tracked-changes><text:p>deleted</text:p></text:tracked-changes><text:h text:outline-level="2">Results'
        '</text:h><text:p>Sales<text:s text:c="2"/>were <text:span>good</text:span>.<text:note><text:note-body>'
        "<text:p>Audited.</text:p></text:note-body></text:note></text:p><text:list><text:list-item><text:p>first"
        "</text:p><text:list><text:list-item><text:p>inner</text:p></text:list-item></text:list></text:list-item>"
        "</text:list><table:table><table:table-row><table:table-cell><text:p>North</text:p></table:table-cell>"
        "<table:table-cell><text:p>7</text:p></table:table-cell></table:table-row></table:table>"
    )
    parsed = parsed_from(documents.opendocument("text", body), "report.odt")
    assert (parsed.kind, parsed.media_type, parsed.title) == (DocumentKind.PROSE, f"{_OASIS}text", "The year")
    expected = ("## Results", "Sales  were good. [Audited.]", "- first", "  - inner", "North | 7")
    assert tuple(line for line in parsed.lines if line) == expected


def test_sheets_are_pages_and_repeated_cells_are_bounded() -> None:
    row = (
        '<table:table-row table:number-rows-repeated="2"><table:table-cell><text:p>a</text:p></table:table-cell>'
        '<table:table-cell table:number-columns-repeated="2"><text:p>b</text:p></table:table-cell></table:table-row>'
        '<table:table-row table:number-rows-repeated="1048576"><table:table-cell '
        'table:number-columns-repeated="16384"/></table:table-row>'
    )
    sheets = f'<table:table table:name="One">{row}</table:table><table:table table:name="Two"/>'
    parsed = parsed_from(documents.opendocument("spreadsheet", sheets))
    assert [line for line in parsed.lines if line] == ["## One", "a | b | b", "a | b | b", "## Two"]
    assert (parsed.page_names, parsed.total_pages) == (("One", "Two"), 2)


def test_slides_have_their_texts_and_notes() -> None:
    slides = (
        '<draw:page draw:name="Plan"><draw:frame><draw:text-box><text:p>Grow.</text:p></draw:text-box></draw:frame>'
        "<presentation:notes><draw:frame><draw:text-box><text:p>Slowly.</text:p></draw:text-box></draw:frame>"
        "</presentation:notes></draw:page>"
    )
    parsed = parsed_from(documents.opendocument("presentation", slides))
    assert [line for line in parsed.lines if line] == ["## Plan", "Grow.", "Notes:", "Slowly."]
    assert parsed.page_names == ("Plan",)


@pytest.mark.parametrize("attribute", ["number-rows-repeated", "number-columns-repeated"])
def test_a_bomb_of_repetitions_ends_at_the_limits(attribute: str) -> None:
    where = ("row", "cell")["columns" in attribute]
    marks = {name: f'table:{attribute}="999999999"' if name == where else "" for name in ("row", "cell")}
    body = (
        f"<table:table><table:table-row {marks['row']}><table:table-cell {marks['cell']}><text:p>x</text:p>"
        "</table:table-cell></table:table-row></table:table>"
    )
    parsed = parsed_from(documents.opendocument("spreadsheet", body), rows=50, columns=20)
    assert len(parsed.lines) < 60
    assert max(map(len, parsed.lines)) < 100
    assert any("beyond the limit" in warning for warning in parsed.warnings)


def test_an_entity_is_refused() -> None:
    bomb = documents.with_parts(
        documents.opendocument("text", "<text:p>&a;</text:p>"),
        {"content.xml": lambda xml: b'<!DOCTYPE x [<!ENTITY a "aaaa">]>' + xml},
    )
    assert "XML entities" in refusal_of(bomb)[1]


def test_rich_text_loses_its_formatting() -> None:
    content = (
        rb"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0 Arial;}}{\info{\title Secret plan}}"
        rb"\f0\b Caf\'e9\b0  costs \u8364?3.\par "
        rb"Second line.\par}"
    )
    parsed = parsed_from(content, "menu.rtf")
    assert (parsed.kind, parsed.media_type) == (DocumentKind.PROSE, "application/rtf")
    assert [line for line in parsed.lines if line] == ["Caf\u00e9 costs \u20ac3.", "Second line."]


@pytest.mark.parametrize("content", [b"{\\rtf1", b"{\\rtf1" + b"{" * 100_000, b"{\\rtf1\\u99999999999?\\'zz}"])
def test_damaged_rich_text_is_read_or_refused_but_never_crashes(content: bytes) -> None:
    try:
        parsed = parsed_from(content)
    except AssertionError:
        assert refusal_of(content)[1]
    else:
        assert len(parsed.lines) < 10
