"""The search of lines: the same lines as a search line by line, in chunks of any size; names; time."""

import random
import re

import pytest
from mnemesh_files.model import file_search
from mnemesh_files.model.file_search import compiled, found_lines, match_of, name_filter, size_of

PATTERNS = ["a", "^b", "c$", "^$", "a.c", "é", "[^a]b", r"\s", "x*", "(a|é)+c"]


def numbers(pattern: str, text: str) -> list[int]:
    found = list(found_lines(compiled(pattern), text.encode(), lambda: False))
    return [each.number for each in found if each is not None]


@pytest.mark.parametrize("chunk", [3, 7, 20, 1_000_000])
def test_chunks_find_what_single_lines_contain(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(file_search, "_CHUNK_BYTES", chunk)
    generator = random.Random(chunk)
    for _ in range(60):
        lines = [
            "".join(generator.choices("abCé x", k=generator.randint(0, 6))) for _ in range(generator.randint(1, 20))
        ]
        text = "\n".join(lines)
        for pattern in PATTERNS if text else ():
            expected = [number for number, line in enumerate(lines, 1) if re.search(pattern, line, re.IGNORECASE)]
            assert numbers(pattern, text) == expected, (pattern, text)


def test_a_pattern_matches_within_a_line() -> None:
    assert numbers(r"a\sb|a[^x]b|(?s)a.b", "a\nb\na b") == [3]


def test_matches_have_their_surroundings() -> None:
    text = b"one\ntwo\nthree\nfour"
    (found,) = [each for each in found_lines(compiled("three"), text, lambda: False) if each]
    match = match_of(found, text, 2, file_id="f", file_name="n", page_starts=(1, 3))
    assert (match.lines_before, match.text, match.lines_after, match.page) == (("one", "two"), "three", ("four",), 2)


def test_the_size_of_a_match_is_counted_in_bytes() -> None:
    text = "é\néé three\n漢".encode()
    (found,) = [each for each in found_lines(compiled("three"), text, lambda: False) if each]
    match = match_of(found, text, 1, file_id="f", file_name="n", page_starts=())
    assert size_of(match) == len(text) - 2


def test_a_late_search_ends() -> None:
    late = iter([False, True])
    text = b"x\n" * file_search._CHUNK_BYTES
    found = list(found_lines(compiled("y"), text, lambda: next(late)))
    assert found == [None]


@pytest.mark.parametrize(
    ("include", "names"),
    [
        ("*.py", ["d/x.py"]),
        ("TEST_*.md", ["d/test_q.md"]),
        ("config", ["e/config.json"]),
        (r"\.txt$", ["f/y.txt"]),
        ("d/*.py", ["d/x.py"]),
        ("b?.md", ["d/b1.md"]),
        (" ", ["d/x.py", "d/test_q.md", "e/config.json", "f/y.txt", "d/b1.md", "d/x.pyc"]),
    ],
)
def test_names_are_selected_by_glob_or_expression(include: str, names: list[str]) -> None:
    is_included = name_filter(include)
    every = ["d/x.py", "d/test_q.md", "e/config.json", "f/y.txt", "d/b1.md", "d/x.pyc"]
    assert [name for name in every if is_included(name)] == names
