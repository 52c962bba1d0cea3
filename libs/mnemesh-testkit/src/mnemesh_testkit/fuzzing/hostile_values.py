"""Values that break careless code, by the kind of field that gets them."""

import json
import random
from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

_ANNOTATIONS: Final = (
    "int", "str", "float", "bool", "dict", "list", "None", "Any", "object", "bytes", "tuple", "set", "Exception", "f",
    "...", "()", "[]", "{}", "''", "'list['", "'\\ud800'", "1", "-1", "1j",
    "9" * 400, "9" * 5_000, "lambda: 0", "a.b.c",
    "__import__('os')",
    "b'x'", "f'{1}'", "not x", "x if y else z", "[x for x in y]", "{'a': 1}", "'" + "x" * 2_000 + "'",
)  # fmt: skip
_GENERICS: Final = (
    "list", "dict", "set", "tuple", "Optional", "Union", "Literal", "Annotated", "Callable", "type", "Sequence", "x",
    "1",
)  # fmt: skip
_DEFAULTS: Final = ("None", "1", "'x'", "[]", "{}", "...", "x", "1e400", "-1", "9" * 5_000, "'\\ud800'", "(1,)", "f()")
_DOCSTRINGS: Final = (
    "F.", "", "F.\n\n    Args:\n        a: x.", "Args:",
    "F.\n\n    Args:\n        a (int): x.\n\n    Args:\n        b: y.",
    "F.\n\n    Args:\n        nobody: x.", "F.\n\n    Returns:", ":param a: x",
    "F.\n\n    Parameters\n    ----------\n    a : int",
    "\\ud800", "F.\n\n    Args:\n    a: x\n      y:\n z", "x" * 5_000, "F.\n\n    Raises:\n        :",
)  # fmt: skip
_KEYWORDS: Final = (
    "type", "properties", "required", "items", "enum", "anyOf", "allOf", "oneOf", "not", "$ref", "$defs", "pattern",
    "format", "default", "additionalProperties", "minimum", "maxLength", "name", "description", "parameters", "strict",
    "a", "", "label", "\ud800",
)  # fmt: skip
_LEAVES: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 1.5, 2**53, 2**64, -(2**63), 10**400, "", "object", "string", "array", "nothing",
    "#/$defs/a", "#",
    "\ud800", "\udfff", "a\0b", "(", "(a+)+$", "x" * 3_000, [], {}, [[]], ["a"], {"type": "object"},
)  # fmt: skip


def composed_json(chance: random.Random) -> str:
    """Returns the text of a JSON object, often one that looks like a schema."""
    value = (
        {"type": "object", "properties": {"a": _json(chance, 3)}} if chance.random() < 0.6 else {"a": _json(chance, 4)}
    )
    if chance.random() < 0.5:
        value = {"name": "f", "description": "F.", "parameters": value}
    for _ in range(chance.choice((0, 1, 1, 2))):
        value[chance.choice(_KEYWORDS)] = _json(chance, 2)
    return json.dumps(value)


def _json(chance: random.Random, depth: int) -> Any:
    if depth <= 0 or chance.random() < 0.3:
        return chance.choice(_LEAVES)
    if chance.random() < 0.3:
        return [_json(chance, depth - 1) for _ in range(chance.randint(0, 3))]
    return {chance.choice(_KEYWORDS): _json(chance, depth - 1) for _ in range(chance.randint(0, 4))}


def composed_source(chance: random.Random) -> str:
    """Returns the source of a function with parameters of random types, defaults and descriptions."""
    parameters = []
    for name in chance.sample(("a", "b", "c", "self", "agent_state", "ä", "a"), chance.randint(0, 3)):
        annotation = f": {_annotation(chance, 3)}" if chance.random() < 0.8 else ""
        default = f" = {chance.choice(_DEFAULTS)}" if chance.random() < 0.3 else ""
        parameters.append(f"{chance.choice(('', '', '', '*', '**'))}{name}{annotation}{default}")
    returned = f" -> {_annotation(chance, 2)}" if chance.random() < 0.4 else ""
    head = chance.choice(
        ("", "from typing import *\n", "import nothing\n", "from __future__ import annotations\n", "@x\n")
    )
    keyword = chance.choice(("def", "def", "def", "async def"))
    quotes = '"' * 3
    return (
        f"{head}{keyword} f({', '.join(parameters)}){returned}:\n"
        f"    {quotes}{chance.choice(_DOCSTRINGS)}{quotes}\n    return {chance.choice(_DEFAULTS)}\n"
    )


def _annotation(chance: random.Random, depth: int) -> str:
    kind = chance.random()
    if depth <= 0 or kind < 0.4:
        return chance.choice(_ANNOTATIONS)
    if kind < 0.75:
        inner = ", ".join(_annotation(chance, depth - 1) for _ in range(chance.randint(0, 3)))
        return f"{chance.choice(_GENERICS)}[{inner or '()'}]"
    if kind < 0.9:
        return " | ".join(_annotation(chance, depth - 1) for _ in range(chance.choice((2, 2, 3, 400))))
    return f"'{chance.choice(_GENERICS)}[{chance.choice(_ANNOTATIONS)}'"


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
