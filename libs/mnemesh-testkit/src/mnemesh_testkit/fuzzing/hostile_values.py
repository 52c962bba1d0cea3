"""Values that break careless code, by the kind of field that gets them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from mnemesh_testkit.fuzzing.composition import composed_json, composed_source

_LONG: Final = "long " * 4_000
TEXTS: Final = (
    "",
    " ",
    "\0",
    "a\0b",
    "\u202eright to left",
    "😀" * 40,
    "'; DROP TABLE blocks; --",
    '" OR 1=1 --',
    "%_*?[",
    "../../../../etc/passwd",
    "{{name}} {CORE_MEMORY} {0} %s %(x)s ${HOME}",
    "<value></memory_blocks>",
    '{"unclosed": [',
    "null",
    "[]",
    "\ud7ff\ue000\uffff",
    "\r\n\t\x1b[31m",
    "NaN",
    "9" * 400,
    "9" * 5_000,
    "2026-13-45T99:99",
    "0000-00-00",
    "9999-12-31T23:59:60+99:99",
    "Mars/Olympus_Mons",
    "../UTC",
    "(" * 500,
    "a" * 5_000 + "!",
    "-" * 300,
    "e\u0301" * 2_000,
    _LONG,
)


def _nested(depth: int, opening: str, inner: str, closing: str) -> str:
    return opening * depth + inner + closing * depth


JSON: Final = (
    "{}",
    "null",
    "[]",
    '""',
    "1",
    "true",
    "{",
    '{"\\ud800": 1}',
    '{"a": "\\udfff"}',
    '{"a": "\\u0000"}',
    '{"\\u0000": 1}',
    '{"a": 1e400}',
    '{"a": -1e400}',
    '{"a": NaN}',
    '{"a": Infinity}',
    '{"a": ' + "9" * 400 + "}",
    '{"a": ' + "9" * 5_000 + "}",
    '{"a": 1, "a": 2}',
    '{"a": ' + _nested(90, "[", "", "]") + "}",
    '{"a": ' + _nested(300, "[", "", "]") + "}",
    _nested(300, '{"a":', "1", "}"),
    _nested(5_000, '{"a":', "1", "}"),
    _nested(100_000, "[", "", "]"),
    '{"a": "' + "x" * 200_000 + '"}',
    "{" + ",".join(f'"{number}": {number}' for number in range(2_000)) + "}",
    '{"label": "human", "new_str": "\\ud83d\\ude00"}',
    '{"a": {"b": [1, 2.5, null, true, "\\u2028"]}}',
)
SCHEMAS: Final = (
    *JSON,
    '{"type": 1}',
    '{"type": "object", "properties": []}',
    '{"type": "object", "properties": {"a": null}}',
    '{"type": "object", "properties": {"a": {"type": "nothing"}}}',
    '{"type": "object", "required": "a"}',
    '{"type": "object", "required": [1, null, {}]}',
    '{"type": "object", "properties": {"a": {"$ref": "#"}}}',
    '{"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}',
    '{"$ref": "http://127.0.0.1:1/x"}',
    '{"$schema": "http://nowhere/"}',
    '{"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}',
    '{"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$"}}}',
    '{"type": "object", "properties": {"a": {"enum": []}}}',
    '{"type": "object", "properties": {"a": {"minimum": "x"}}}',
    '{"type": ["object", "null"]}',
    '{"name": "f", "parameters": {"type": "object", "properties": {}}}',
    '{"name": 1, "parameters": 2}',
    '{"name": "f", "description": [], "parameters": {"type": "object", "properties": {"a": 1}}}',
    '{"name": "f", "parameters": null}',
    '{"name": "\\ud800", "parameters": {}}',
    '{"name": "f", "parameters": {"type": "object", "properties": '
    + _nested(200, '{"a":{"properties":', "{}", "}}")
    + "}}",
)
SOURCES: Final = (
    "def f(): pass",
    "def f(a):\n    '''F.'''\n    return a",
    "def f(a: int = 9999999999999999999999) -> str:\n    '''F.\n\n    Args:\n        a: x.\n    '''\n    return ''",
    "def f(a: 'list[') -> str:\n    '''F.\n\n    Args:\n        a: x.\n    '''\n    return ''",
    "def f(a: list[list[list[list[int]]]]):\n    '''F.\n\n    Args:\n        a: x.\n    '''",
    "def f(*args, **kwargs): '''F.'''",
    "async def f(): '''F.'''",
    "class A: pass",
    "lambda: 0",
    "def f(",
    "\tdef f(): pass",
    "def f(a=" + "9" * 5_000 + "): '''F.'''",
    "x = " + "(" * 300 + ")" * 300 + "\ndef f(): '''F.'''",
    "x = " + "-" * 3_000 + "1\ndef f(): '''F.'''",
    "x = " + "+".join(["1"] * 3_000) + "\ndef f(): '''F.'''",
    "def f(a: " + " | ".join(["int"] * 1_500) + "): '''F.'''",
    "def f(a: Annotated[()]): '''F.'''",
    "def f(a: Literal[{[]}]): '''F.'''",
    "def f(a: Literal['\\ud800']) -> str: '''F.'''",
    "def f(a: dict[list, int], b: tuple[()], c: Optional[()]): '''F.'''",
    "def f(a):\n    '''F.\n\n    Args:\n        a: x.\n\n    Args:\n        a: y.\n    '''",
    "def f(a):\n    '''Args:'''",
    "def f(a, a): '''F.'''",
    "def f(): '''\ud7ff\0'''",
    "# -*- coding: utf-7 -*-\ndef f(): pass",
    "\ufeffdef f(): '''F.'''",
    "import os; os.system('x')\ndef f(): '''F.'''",
)
MASKS: Final = ("", ".", "*", "id", "name.x", "no_such_field", "metadata", "update_time", "a" * 10_000, "näme", "value")
_JSON_NAMES: Final = ("arguments", "metadata", "extra", "options", "settings", "tool_args", "tool_result", "json")
INTEGERS: Final = (0, 1, -1, 7, 100, 1_000, 1_001, 2**31 - 1, -(2**31))
LONGS: Final = (
    *INTEGERS,
    2**62,
    2**63 - 1,
    -(2**63),
    253_402_300_799,
    253_402_300_800,
    -62_135_596_800,
    -62_135_596_801,
)
FLOATS: Final = (0.0, -0.0, -1.0, 0.5, 1.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"))


def texts_of(field: FieldDescriptor) -> Sequence[str]:
    """Returns the hostile texts for a string field, by its name."""
    name = field.name
    if name == "paths":
        return MASKS
    if name == "source_code":
        return SOURCES
    if name.endswith("schema") or name == "parameters":
        return SCHEMAS
    return JSON if name.endswith(_JSON_NAMES) else TEXTS


def scalar(field: FieldDescriptor, chance: random.Random) -> Any:
    """Returns a hostile value for a scalar field of any type."""
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return _text(field, chance)
        case FieldDescriptor.TYPE_BYTES:
            return chance.choice((b"", b"\0\xff\xfe", b"\x89PNG", b"x" * 100_000))
        case FieldDescriptor.TYPE_BOOL:
            return chance.random() < 0.5
        case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FLOAT:
            return chance.choice(FLOATS)
        case FieldDescriptor.TYPE_ENUM:
            known = [value.number for value in field.enum_type.values] if field.enum_type is not None else []
            return chance.choice([*known, 999, -1, 2**31 - 1])
        case FieldDescriptor.TYPE_INT64 | FieldDescriptor.TYPE_SINT64 | FieldDescriptor.TYPE_SFIXED64:
            return chance.choice(LONGS)
        case FieldDescriptor.TYPE_UINT32 | FieldDescriptor.TYPE_FIXED32:
            return chance.choice((0, 1, 2**32 - 1))
        case FieldDescriptor.TYPE_UINT64 | FieldDescriptor.TYPE_FIXED64:
            return chance.choice((0, 1, 2**63, 2**64 - 1))
        case _:
            return chance.choice(INTEGERS)


def _text(field: FieldDescriptor, chance: random.Random) -> str:
    texts = texts_of(field)
    if texts is SOURCES and chance.random() < 0.6:
        return composed_source(chance)
    if texts in (JSON, SCHEMAS) and chance.random() < 0.5:
        return composed_json(chance)
    return chance.choice(texts if chance.random() < 0.9 else TEXTS)
