"""The limits of the schema of one function. A part of it that is used again costs no time, but counts again."""

import ast
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final

MAX_DEPTH: Final = 32
MAX_MEMBERS: Final = 200
_MAX_PARTS: Final = 2_000
_MAX_CHARS: Final = 250_000


class UnsupportedAnnotation(Exception):
    """The annotation has no JSON schema. The message names the part and the reason."""


@dataclass(frozen=True, slots=True)
class _Made:
    schema: dict[str, Any]
    parts: int
    chars: int
    height: int
    nodes: tuple[ast.expr, ...]
    """Kept, because the key is their identity."""


@dataclass(slots=True)
class SchemaBudget:
    """Counts the parts and the characters of a schema, and remembers its parts."""

    _parts: int = 0
    _chars: int = 0
    _deepest: int = 0
    _made: dict[tuple[Hashable, ...], _Made] = field(default_factory=dict)

    def spend(self, parts: int, chars: int, depth: int) -> None:
        """Counts a part, or texts.

        Raises:
            UnsupportedAnnotation: A limit is exceeded.
        """
        self._parts += parts
        self._chars += chars
        self._deepest = max(self._deepest, depth)
        if depth > MAX_DEPTH:
            raise UnsupportedAnnotation("it is nested too deeply")
        if self._parts > _MAX_PARTS:
            raise UnsupportedAnnotation(f"it consists of more than {_MAX_PARTS:,} parts")
        if self._chars > _MAX_CHARS:
            raise UnsupportedAnnotation(f"its schema has more than {_MAX_CHARS:,} characters")

    def made_once(
        self, name: str | None, nodes: tuple[ast.expr, ...], depth: int, make: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """Returns the schema that `make` returns, and calls it once for equal nodes. The schema must not be changed.

        Args:
            name: The name of the declared class that the first node is; None if it is another annotation.
            nodes: An annotation, and its metadata.
            depth: The depth of the schema within that of the parameter.
            make: Makes the schema.

        Raises:
            UnsupportedAnnotation: A limit is exceeded.
        """
        key = (name or id(nodes[0]), *map(id, nodes[1:]))
        made = self._made.get(key)
        if made is not None:
            self.spend(made.parts, made.chars, depth + made.height)
            return made.schema
        parts, chars, deepest = self._parts, self._chars, self._deepest
        self._deepest = depth
        self.spend(1, 0, depth)
        schema = make()
        self.spend(0, _own_chars(schema), depth)
        height = self._deepest - depth
        self._made[key] = _Made(schema, self._parts - parts, self._chars - chars, height, nodes)
        self._deepest = max(deepest, self._deepest)
        return schema


def _own_chars(schema: dict[str, Any]) -> int:
    """Returns the characters of the texts of a schema, without those of the schemas in it."""
    texts = [*schema.values(), *schema.get("enum", ()), *schema.get("properties", ())]
    return sum(len(text) for text in texts if isinstance(text, str))
