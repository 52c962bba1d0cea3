"""Passages: sizes, boundaries, line numbers, and stability under changes."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mnemesh_files.chunks import Passage, approximate_tokens, passages_of
from mnemesh_files.parsers.document import DocumentKind, ParsedDocument

_KINDS = (DocumentKind.CODE, DocumentKind.PROSE, DocumentKind.DATA)


def _document(text: str, kind: DocumentKind = DocumentKind.PROSE, **more: object) -> ParsedDocument:
    return replace(ParsedDocument(kind, "text/plain", text), **more)


def _prose(paragraphs: int, seed: int = 1) -> str:
    rng = random.Random(seed)
    words = ["the", "of", "house", "river", "stone", "light", "seven", "garden", "water", "under"]
    lines: list[str] = []
    for number in range(paragraphs):
        if number % 8 == 0:
            lines += [f"## Part {number}", ""]
        lines += [" ".join(rng.choices(words, k=rng.randrange(10, 60))) + ".", ""]
    return "\n".join(lines)


@given(st.text(alphabet="ab #.\n\t{(:\u4e2d", max_size=400), st.integers(1, 30), st.sampled_from(_KINDS), st.booleans())
def test_passages_contain_each_line_once(text: str, size: int, kind: DocumentKind, pages: bool) -> None:
    document = _document(text.strip("\n"), kind, page_starts=(1, 3) if pages else ())
    passages = passages_of(document, size)

    assert "".join("".join(passage.text for passage in passages).split()) == "".join(document.text.split())
    for passage in passages:
        assert 1 <= passage.start_line <= passage.end_line <= document.total_lines
        assert approximate_tokens(passage.text) <= size
        assert passage.page == document.page_of(passage.start_line)
        if "\n" in passage.text:
            shown = passage.text.split("\n")
            lines = document.lines[passage.start_line - 1 : passage.end_line]
            assert [*shown[1:-1]] == [*lines[1:-1]]
            assert lines[0].endswith(shown[0])
            assert lines[-1].startswith(shown[-1])


@pytest.mark.parametrize("seed", range(5))
def test_a_change_changes_only_the_passages_near_it(seed: int) -> None:
    lines = _prose(400).split("\n")
    before = {passage.text_hash for passage in passages_of(_document("\n".join(lines)), 100)}
    rng = random.Random(seed)
    position = rng.randrange(len(lines))
    changed = [*lines[:position], "A new paragraph stands here.", "", *lines[position:]]

    after = passages_of(_document("\n".join(changed)), 100)

    assert len(after) > 100
    assert sum(passage.text_hash not in before for passage in after) <= 4


def test_a_passage_of_prose_begins_at_a_heading() -> None:
    passages = passages_of(_document(_prose(100)), 700)

    assert all(passage.text.startswith("## Part") for passage in passages)


def test_a_passage_of_code_begins_at_a_definition_with_its_comments() -> None:
    functions = [
        f"# The {name}\n@decorated\ndef {name}(value):\n    if value:\n        return {name!r}\n\n    return [value]"
        for name in ("first", "second", "third", "fourth", "fifth")
    ]
    passages = passages_of(_document("\n\n\n".join(functions), DocumentKind.CODE, language="python"), 50)

    assert [passage.text for passage in passages] == functions
    assert [(passage.start_line, passage.end_line) for passage in passages] == [
        (1 + 9 * number, 7 + 9 * number) for number in range(5)
    ]


def test_a_long_line_is_divided_at_sentences() -> None:
    sentences = [f"Sentence number {number} has a few words in it." for number in range(20)]
    passages = passages_of(_document("Title\n\n" + " ".join(sentences)), 40)

    assert {(passage.start_line, passage.end_line) for passage in passages[1:]} == {(3, 3)}
    assert all(passage.text.rstrip().endswith("in it.") for passage in passages)


def test_lines_of_a_printed_page_are_divided_after_sentences() -> None:
    """A PDF has no empty lines between its paragraphs."""
    lines = [f"This is line {number} of a printed page{'.' if number % 4 == 3 else ''}" for number in range(80)]
    passages = passages_of(_document("\n".join(lines)), 100)

    assert len(passages) > 5
    assert all(passage.text.endswith(".") for passage in passages)


def test_a_table_of_data_is_divided_between_records() -> None:
    rows = [f"{number},name {number},{number * 7}" for number in range(200)]
    passages = passages_of(_document("\n".join(rows), DocumentKind.DATA), 100)

    assert [row for passage in passages for row in passage.text.split("\n")] == rows
    assert len(passages) < 25


def test_an_empty_document_has_no_passages() -> None:
    assert passages_of(_document(""), 300) == []
    assert passages_of(_document(" \n\n\t"), 300) == []


def test_a_small_document_is_one_passage() -> None:
    assert passages_of(_document("\nHello.\n", page_starts=(1,)), 300) == [Passage("Hello.", 2, 2, 1)]


def test_a_passage_has_at_least_one_token() -> None:
    with pytest.raises(ValueError, match="chunk_size must be at least 1"):
        passages_of(_document("a"), 0)
