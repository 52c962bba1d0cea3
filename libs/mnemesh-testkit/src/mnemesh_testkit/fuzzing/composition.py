"""Random JSON texts and Python sources: correct ones in which single parts are not what a reader expects."""

from __future__ import annotations

import json
import random
from typing import Any, Final

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
