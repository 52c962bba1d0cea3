"""Bounds of a JSON text before it is decoded."""

import json

import pytest
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.json_bounds import TooManyValues, require_bounded_json


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b"{}," * 100 + b"{}]",
        b"[" + b"[]," * 100 + b"[]]",
        b"[" + b"1," * 100 + b"1]",
        b"[" + b'"",' * 100 + b'""]',
        b"[" + b'"\\"\\\\",' * 100 + b"1]",
        b'{"a":' + json.dumps({str(n): n for n in range(101)}).encode() + b"}",
        b"[" * 101,
    ],
    ids=["objects", "lists", "numbers", "texts", "escapes", "names", "brackets"],
)
def test_text_with_too_many_values_is_refused(text: bytes) -> None:
    with pytest.raises(TooManyValues):
        require_bounded_json(text, 100)


@pytest.mark.parametrize(
    "value",
    [
        "a,b;{[" * 1_000,
        {"text": "\\" * 999 + "," * 999},
        {"text": '",' * 999, "other": '\\",[{' * 999},
        ["x"] * 100,
        {"a": [[{"b": list(range(90))}]]},
        "\\",
        {"\\": '\\"\\\\"'},
    ],
)
def test_marks_in_strings_are_no_values(value: object) -> None:
    require_bounded_json(json.dumps(value).encode(), 100)
    require_bounded_json(json.dumps(value, ensure_ascii=False, indent=1).encode(), 100)


def test_deep_nesting_is_refused_wherever_it_is() -> None:
    deep = b'{"a":' * 60 + b"[" * 41 + b"]" * 41 + b"}" * 60
    wide = b"[" + b"[]," * 300 + b"[]]"
    require_bounded_json(wide, 1_000, 100)
    require_bounded_json(deep, 1_000, 101)
    with pytest.raises(InvalidArgument, match="nested too deeply"):
        require_bounded_json(b'["' + b"]" * 100 + b'",' + deep + b"]", 1_000, 101)
