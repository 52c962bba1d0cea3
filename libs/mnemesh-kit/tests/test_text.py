"""Checks of texts in requests."""

import json
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import (
    MAX_JSON_DEPTH,
    require_json,
    require_json_object,
    require_line,
    require_no_controls,
    require_no_nul,
    require_optional_text,
    require_text,
    require_texts,
    well_formed,
    well_formed_json,
)
from mnemesh_kit.unicode import PieceJoiner

ACCEPTED: list[tuple[Callable[[str, str], object], str]] = [
    (require_no_nul, ""),
    (partial(require_text, max_chars=3), "äöü"),
    (partial(require_text, max_bytes=6), "äöü"),
    (require_text, " \n"),
    (partial(require_no_controls, max_chars=10), "two\nlines\t"),
    (require_line, "one line"),
    (require_json, "[1, null]"),
    (partial(require_json_object, max_bytes=100), '{"a": "\\u0000"}'),
]
REFUSED: list[tuple[Callable[[str, str], object], str, str]] = [
    (require_no_nul, "a\0b", "must not contain NUL"),
    (require_text, "a\0b", "must not contain NUL"),
    (partial(require_text, max_chars=3), "1234", "at most 3 characters"),
    (partial(require_text, max_bytes=5), "äöü", "at most 5 bytes"),
    (partial(require_text, min_chars=1), "", "is required"),
    (partial(require_text, min_chars=2), "a", "at least 2 characters"),
    (partial(require_text, allow_blank=False), " \t\n", "must not be blank"),
    (require_no_controls, "a\x1b[2J", "must not contain control"),
    (require_line, "two\nlines", "must not contain control"),
    (require_line, "next\x85line", "must not contain control"),
    (require_line, "", "must not be blank"),
    (require_json, "{", "JSON value"),
    (require_json, "[" * 100_000, "must not be nested deeper than 100 levels"),
    (require_json_object, "[]", "JSON object"),
    (require_json_object, '{"a": 1', "JSON object"),
    (require_json, '["\\ud800"]', "half of a character"),
    (require_json_object, '{"\\udc00": 1}', "half of a character"),
    (partial(require_json_object, max_bytes=3), '{"a": 1}', "at most 3 bytes"),
]


@pytest.mark.parametrize(("check", "text"), ACCEPTED)
def test_accepted_text_is_returned_unchanged(check: Callable[[str, str], object], text: str) -> None:
    assert check(text, "block.value") == text


@pytest.mark.parametrize(("check", "text", "problem"), REFUSED)
def test_refusal_names_the_field(check: Callable[[str, str], object], text: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem) as refused:
        check(text, "block.value")
    assert refused.value.field == "block.value"
    assert refused.value.message.startswith("block.value ")


def test_unset_text_is_not_checked() -> None:
    assert require_optional_text(None, "name", min_chars=1) is None
    with pytest.raises(InvalidArgument):
        require_optional_text("", "name", min_chars=1)


def test_repeated_texts_are_checked_one_by_one() -> None:
    assert require_texts(["b", "a"], "tags", max_items=2, min_chars=1, distinct=True) == ("b", "a")
    for values in (["a", "b", "c"], ["a", ""], ["a", "a"], ["a", "x\0"], ["a", "long"]):
        with pytest.raises(InvalidArgument) as refused:
            require_texts(values, "tags", max_items=2, min_chars=1, max_chars=3, distinct=True)
        assert refused.value.field == "tags"


_ANY = st.text(st.characters(), max_size=50)


@given(_ANY, st.none() | st.integers(0, 200))
def test_well_formed_text_can_be_stored_and_sent(text: str, max_bytes: int | None) -> None:
    result = well_formed(text, max_bytes)
    assert "\0" not in result
    assert result.encode().decode() == result
    assert well_formed(result, max_bytes) == result
    assert max_bytes is None or len(result.encode()) <= max_bytes


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("plain 😀", "plain 😀"),
        ("a\ud83d\ude00b", "a😀b"),
        ("\ud83d", "\ufffd"),
        ("x\ude00y\0", "x\ufffdy\ufffd"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
    ],
)
def test_surrogate_pairs_are_joined_and_lone_surrogates_replaced(text: str, result: str) -> None:
    assert well_formed(text) == result


def test_long_text_is_cut_with_a_note() -> None:
    result = well_formed("ä" * 1000, 300)
    assert result.startswith("ä" * 80)
    assert result.endswith("[The text was cut here: it has 2,000 bytes, and at most 300 are kept.]")


@given(_ANY, _ANY, st.sampled_from(["\\ud83d\\ude00", "\\ud83d", "\\uDE00", "\\u0000", "\\\\ud800", "\\n", "é"]))
def test_strings_of_well_formed_json_are_well_formed(key: str, value: str, escape: str) -> None:
    text = json.dumps({key: [value]})
    text = text[:2] + escape + text[2:]
    result = json.loads(well_formed_json(text))
    assert result == {well_formed(a): [well_formed(b) for b in c] for a, c in json.loads(text).items()}


def test_incomplete_json_is_made_well_formed() -> None:
    assert well_formed_json('{"a": "\\ud83d\\u') == '{"a": "\\ufffd\\u'


@given(_ANY, st.lists(st.integers(0, 50), max_size=5))
def test_text_in_deltas_is_made_well_formed_like_the_complete_text(text: str, cuts: list[int]) -> None:
    joiner, ends = PieceJoiner(), [0, *sorted(cuts), len(text)]
    pieces = [joiner.add(text[start:end]) for start, end in pairwise(ends)]
    assert "".join([*pieces, joiner.end()]) == well_formed(text)


@pytest.mark.parametrize("depth", [MAX_JSON_DEPTH - 1, MAX_JSON_DEPTH, 300, 5_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_json_is_bounded_in_depth(opening: str, closing: str, depth: int) -> None:
    text = '{"a": ' + opening * depth + "1" + closing * depth + "}"
    if depth < MAX_JSON_DEPTH:
        assert require_json_object(text, "metadata") == text
    else:
        with pytest.raises(InvalidArgument, match="metadata"):
            require_json_object(text, "metadata")


def test_wide_json_is_not_deep_but_bounded() -> None:
    assert require_json("[" + ",".join(["[{}]"] * 5_000) + "]", "metadata")
    with pytest.raises(InvalidArgument, match="metadata"):
        require_json("[" + ",".join(["[]"] * 100_000) + "]", "metadata")


@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 4_301, "9" * 5_000 + ".5"], ids=lambda text: text[:6])
def test_numbers_that_cannot_be_represented_are_named(number: str) -> None:
    for text in (f'{{"a": {number}}}', f'{{"a": [1, {{"b": {number}}}]}}'):
        with pytest.raises(InvalidArgument, match=r"metadata must not contain a number that is out of range\."):
            require_json_object(text, "metadata")


@pytest.mark.parametrize("text", ["9" * 4_300, "1e308", "1e-400", '"out of range"'], ids=lambda text: text[:6])
def test_other_values_are_in_range(text: str) -> None:
    assert require_json(text, "metadata") == text


@pytest.mark.parametrize("text", ['{"out of range": }', "NaN", '{"a": 1e}'])
def test_malformed_json_is_not_called_a_number(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"metadata must be the text of a JSON"):
        require_json(text, "metadata")
