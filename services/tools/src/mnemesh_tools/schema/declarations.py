"""The types that a source declares: classes with fields, enums and aliases. They are read from the syntax tree."""

import ast
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

UNPARSABLE: Final = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError, SystemError)
"""What the parser of Python raises for a text; SystemError for one that ends in the depth of the stack."""
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


_FIELD_CALLS: Final = frozenset({"Field", "field"})


def last_name(node: ast.expr | None) -> str | None:
    """Returns the last part of a name: `List` for `typing.List` and `t.List`; "None" for None."""
    if isinstance(node, ast.Constant) and node.value is None:
        return "None"
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def literal(node: ast.expr | None) -> Any:
    """Returns the value of a literal; `...` if it is none."""
    try:
        return ... if node is None else ast.literal_eval(node)
    except UNPARSABLE:
        return ...


def field_call(node: ast.expr | None) -> ast.Call | None:
    """Returns the node if it is a call of pydantic's `Field` or of the `field` of dataclasses."""
    return node if isinstance(node, ast.Call) and last_name(node.func) in _FIELD_CALLS else None


def keyword_value(call: ast.Call, name: str) -> ast.expr | None:
    """Returns the argument that a call passes by this name."""
    return next((item.value for item in call.keywords if item.arg == name), None)


_MAX_DECLARATIONS: Final = 500
_ENUM_BASES: Final = frozenset({"Enum", "IntEnum", "StrEnum"})
_FLAG_BASES: Final = frozenset({"Flag", "IntFlag"})


class Kind(Enum):
    """The kind of a declared class."""

    DATACLASS = "dataclass"
    MODEL = "pydantic model"
    TYPED_DICT = "TypedDict"
    NAMED_TUPLE = "NamedTuple"
    ENUM = "enum"


@dataclass(frozen=True, slots=True)
class DeclaredField:
    """A field of a declared class."""

    name: str
    annotation: ast.expr
    required: bool
    """The constructor needs it: it has no default."""
    description: str | None
    metadata: tuple[ast.expr, ...] = ()
    """The call of `Field`, if the field has one."""


@dataclass(frozen=True, slots=True)
class DeclaredClass:
    """A class of the source."""

    name: str
    kind: Kind
    fields: tuple[DeclaredField, ...] = ()
    values: tuple[Any, ...] = ()
    """The values of an enum, in the order of its members. A value that is not a literal is `...`."""


@dataclass(frozen=True, slots=True)
class Declarations:
    """The types that annotations of a source can name."""

    classes: Mapping[str, DeclaredClass] = field(default_factory=dict)
    aliases: Mapping[str, ast.expr] = field(default_factory=dict)


NONE_DECLARED: Final = Declarations()


def read_declarations(module: ast.Module) -> Declarations:
    """Returns the types declared at the top level of a source. A class of an unknown kind is left out."""
    classes: dict[str, DeclaredClass] = {}
    aliases: dict[str, ast.expr] = {}
    for node in module.body:
        if len(classes) + len(aliases) >= _MAX_DECLARATIONS:
            break
        if isinstance(node, ast.ClassDef):
            declared = _class(node, classes)
            if declared is not None:
                classes[node.name] = declared
        elif (alias := _alias(node)) is not None:
            name, value = alias
            functional = _functional(name, value)
            if functional is None:
                aliases[name] = value
            else:
                classes[name] = functional
    return Declarations(classes, aliases)


def _class(node: ast.ClassDef, known: Mapping[str, DeclaredClass]) -> DeclaredClass | None:
    bases = [name for base in node.bases if (name := last_name(_without_parameters(base))) is not None]
    parents = [known[name] for name in dict.fromkeys(bases) if name in known]
    kind = _kind(node, bases, parents)
    if kind is None:
        return None
    if kind is Kind.ENUM:
        return DeclaredClass(node.name, kind, values=tuple(_members(node, bases)))
    fields = {item.name: item for parent in parents for item in parent.fields}
    fields.update((item.name, item) for item in _fields(node, kind))
    return DeclaredClass(node.name, kind, tuple(fields.values()))


def _without_parameters(base: ast.expr) -> ast.expr:
    return base.value if isinstance(base, ast.Subscript) else base


def _kind(node: ast.ClassDef, bases: list[str], parents: list[DeclaredClass]) -> Kind | None:
    decorators = {last_name(item.func if isinstance(item, ast.Call) else item) for item in node.decorator_list}
    if "dataclass" in decorators:
        return Kind.DATACLASS
    if _ENUM_BASES & set(bases) and not _FLAG_BASES & set(bases):
        return Kind.ENUM
    for name, kind in (
        ("BaseModel", Kind.MODEL),
        ("TypedDict", Kind.TYPED_DICT),
        ("NamedTuple", Kind.NAMED_TUPLE),
    ):
        if name in bases:
            return kind
    return parents[0].kind if parents else None


def _alias(node: ast.stmt) -> tuple[str, ast.expr] | None:
    """Returns the name and the value of `X = ...`, `X: TypeAlias = ...`, `type X = ...` or `X = NewType("X", ...)`."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        name, value = node.targets[0].id, node.value
    elif (
        isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and last_name(node.annotation) == ("TypeAlias")
    ):
        if node.value is None:
            return None
        name, value = node.target.id, node.value
    elif type(node).__name__ == "TypeAlias":  # a statement of Python 3.12
        target: Any = node
        return target.name.id, target.value
    else:
        return None
    if isinstance(value, ast.Call) and last_name(value.func) == "NewType" and len(value.args) == 2:
        return name, value.args[1]
    return name, value


def _functional(name: str, value: ast.expr) -> DeclaredClass | None:
    """Returns the class of `X = Enum("X", ...)`, `X = TypedDict("X", {...})` or `X = NamedTuple("X", [...])`."""
    if not isinstance(value, ast.Call) or len(value.args) < 2:
        return None
    make = _FUNCTIONAL.get(last_name(value.func) or "")
    return None if make is None else make(name, value)


def _functional_enum(name: str, call: ast.Call) -> DeclaredClass | None:
    members = literal(call.args[1])
    if isinstance(members, str):
        members = members.replace(",", " ").split()
    if isinstance(members, dict):
        values: list[Any] = list(members.values())
    elif isinstance(members, (list, tuple)):
        pairs = [member for member in members if isinstance(member, (list, tuple)) and len(member) == 2]
        is_named = bool(pairs) and len(pairs) == len(members)
        numbered: list[Any] = list(range(1, len(members) + 1))
        generated = [_lower(member) for member in members] if last_name(call.func) == "StrEnum" else numbered
        values = [pair[1] for pair in pairs] if is_named else generated
    else:
        return None
    return DeclaredClass(name, Kind.ENUM, values=tuple(values))


def _lower(member: Any) -> Any:
    return member.lower() if isinstance(member, str) else ...


def _functional_typed_dict(name: str, call: ast.Call) -> DeclaredClass | None:
    items = call.args[1]
    if not isinstance(items, ast.Dict):
        return None
    total = literal(keyword_value(call, "total")) is not False
    fields = [
        DeclaredField(key.value, value, _is_required_key(value, total=total), None)
        for key, value in zip(items.keys, items.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    ]
    return DeclaredClass(name, Kind.TYPED_DICT, tuple(fields))


def _functional_named_tuple(name: str, call: ast.Call) -> DeclaredClass | None:
    items = call.args[1]
    if not isinstance(items, (ast.List, ast.Tuple)):
        return None
    pairs = [item.elts for item in items.elts if isinstance(item, ast.Tuple) and len(item.elts) == 2]
    fields = [
        DeclaredField(key.value, value, True, None)
        for key, value in pairs
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    ]
    return DeclaredClass(name, Kind.NAMED_TUPLE, tuple(fields))


_FUNCTIONAL: Final[dict[str, Callable[[str, ast.Call], DeclaredClass | None]]] = {
    **dict.fromkeys(_ENUM_BASES, _functional_enum),
    "TypedDict": _functional_typed_dict,
    "NamedTuple": _functional_named_tuple,
}


def _members(node: ast.ClassDef, bases: list[str]) -> Iterator[Any]:
    latest: Any = 0
    for statement in node.body:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        target = statement.targets[0]
        if not isinstance(target, ast.Name) or target.id.startswith("_"):
            continue
        if isinstance(statement.value, ast.Call) and last_name(statement.value.func) == "auto":
            is_text = "StrEnum" in bases or "str" in bases
            latest = target.id.lower() if is_text else latest + 1 if isinstance(latest, int) else ...
        else:
            latest = literal(statement.value)
        yield latest


def _fields(node: ast.ClassDef, kind: Kind) -> Iterator[DeclaredField]:
    described = _described(node)
    total = literal(next((item.value for item in node.keywords if item.arg == "total"), None)) is not False
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name, annotation = statement.target.id, statement.annotation
        if _is_class_variable(annotation) or (kind is Kind.MODEL and name.startswith("_")):
            continue
        call = field_call(statement.value)
        if call is not None and literal(keyword_value(call, "init")) is False:
            continue
        required = (
            _is_required_key(annotation, total=total)
            if kind is Kind.TYPED_DICT
            else not _has_default(statement.value, call, kind)
        )
        description = _text_after(following) or described.get(name)
        yield DeclaredField(name, annotation, required, description, () if call is None else (call,))


def _is_class_variable(annotation: ast.expr) -> bool:
    node = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return last_name(node) in ("ClassVar", "KW_ONLY")


def _is_required_key(annotation: ast.expr, *, total: bool) -> bool:
    node = annotation
    while isinstance(node, ast.Subscript):
        name = last_name(node.value)
        if name in ("Required", "NotRequired"):
            return name == "Required"
        if name not in ("Annotated", "ReadOnly"):
            break
        node = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
    return total


def _has_default(value: ast.expr | None, call: ast.Call | None, kind: Kind) -> bool:
    if value is None:
        return False
    if call is None:
        return not (kind is Kind.MODEL and literal(value) is Ellipsis and isinstance(value, ast.Constant))
    default = call.args[0] if call.args and kind is Kind.MODEL else keyword_value(call, "default")
    if default is not None:
        return not (isinstance(default, ast.Constant) and default.value is Ellipsis)
    return keyword_value(call, "default_factory") is not None


def _described(node: ast.ClassDef) -> dict[str, str]:
    """Returns the descriptions of fields in the docstring of the class."""
    import docstring_parser  # noqa: PLC0415  (it is loaded with the first source)

    text = ast.get_docstring(node)
    if text is None:
        return {}
    try:
        parsed = docstring_parser.parse(text, style=docstring_parser.DocstringStyle.GOOGLE)
    except docstring_parser.ParseError:
        return {}
    return {item.arg_name: item.description.strip() for item in parsed.params if item.description}


def _text_after(statement: ast.stmt | None) -> str | None:
    """Returns the string that follows a field as its description."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return value.value.strip() if isinstance(value, ast.Constant) and isinstance(value.value, str) else None
