"""Schemas of the types that a source declares, and of constraints and descriptions beside a type."""

import textwrap
import time
from typing import Any

import pytest
from mnemesh_tools.errors import ToolSourceInvalid
from mnemesh_tools.schema import from_source, read_source

STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}

DECLARATIONS = '''
import datetime as dt
import enum
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, IntEnum, StrEnum, auto
from typing import ClassVar, Literal, NamedTuple, NewType, NotRequired, Required, TypeAlias, TypedDict
from pydantic import BaseModel, Field

class Colour(Enum):
    """A colour."""
    RED = "red"
    GREEN = "green"
    _ignored = "x"
    def dark(self): ...

class Level(enum.IntEnum):
    LOW = 1
    HIGH = auto()

class Unit(StrEnum):
    KILOMETRE = auto()
    MILE = auto()

class Mood(str, Enum):
    GOOD = "good"
    BAD = "bad"

class Mixed(Enum):
    ONE = 1
    TEXT = "text"
    YES = True

Season = Enum("Season", ["SPRING", "AUTUMN"])
Grade = Enum("Grade", {"A": "a", "B": "b"})
Side = StrEnum("Side", "LEFT RIGHT")
Code = IntEnum("Code", [("OK", 200), ("GONE", 410)])

@dataclass
class Point:
    """A point.

    Attributes:
        x: Metres to the east.
        y: Metres to the north.
    """
    x: float
    y: float = 0.0
    kind: ClassVar[str] = "point"

@dataclass(frozen=True, slots=True)
class Place(Point):
    name: str | None = None
    tags: list[str] = field(default_factory=list)
    cache: dict = field(init=False)
    _: KW_ONLY
    note: "Optional[str]"
    """A remark."""

class Box(NamedTuple):
    corner: Point
    size: int = 1

Pair = NamedTuple("Pair", [("left", int), ("right", str)])

class Movie(TypedDict):
    title: str
    year: NotRequired[int]

class Loose(TypedDict, total=False):
    title: Required[str]
    year: Annotated[int, "The year."]

class Sequel(Movie):
    part: int

Options = TypedDict("Options", {"depth": int, "labels": NotRequired[list[str]]}, total=True)

class Item(BaseModel):
    """An item of an order."""
    name: str = Field(..., description="The name.", min_length=1, max_length=80, pattern="^[a-z]+$")
    count: int = Field(1, ge=1, le=10)
    price: Annotated[float, Field(gt=0, lt=1e6, multiple_of=0.5)] = Field(...)
    colours: list[Colour] = Field(default_factory=list, max_length=3)
    parent: Optional["Item0"] = None
    required: int = ...

class Item0(BaseModel):
    id: int

class Order(Item0):
    items: list[Item0]
    by: dict[str, Item0] = {}

class Node(BaseModel):
    next: "Node | None" = None

class Weird(BaseModel):
    data: bytes

class Broken(Enum):
    A = object()

class Empty(Enum):
    pass

class Plain:
    x: int

Ids: TypeAlias = list[int]
Mode = Literal["fast", "slow"]
Chain = list["Chain"]
UserId = NewType("UserId", int)
Positive = Annotated[int, Field(gt=0, description="More than nothing.")]
LIMIT = 3
'''


def _object(properties: dict[str, Any], *required: str, closed: bool = True) -> dict[str, Any]:
    rest = {"additionalProperties": False} if closed else {}
    return {"type": "object", "properties": properties, "required": list(required), **rest}


X = {"type": "number", "description": "Metres to the east."}
Y = {"type": "number", "description": "Metres to the north."}
POINT = _object({"x": X, "y": Y}, "x")
PLACE = _object(
    {
        "x": X,
        "y": Y,
        "name": STRING,
        "tags": {"type": "array", "items": STRING},
        "note": {"type": "string", "description": "A remark."},
    },
    "x",
)
ID = _object({"id": INTEGER}, "id", closed=False)
ITEM = _object(
    {
        "name": {
            "type": "string",
            "minLength": 1,
            "maxLength": 80,
            "pattern": "^[a-z]+$",
            "description": "The name.",
        },
        "count": {"type": "integer", "minimum": 1, "maximum": 10},
        "price": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e6, "multipleOf": 0.5},
        "colours": {"type": "array", "items": {"type": "string", "enum": ["red", "green"]}, "maxItems": 3},
        "parent": ID,
        "required": INTEGER,
    },
    "name",
    "price",
    "required",
    closed=False,
)

# The schema of one parameter by its annotation, and whether it is required.
CORPUS: dict[str, tuple[dict[str, Any], bool]] = {
    "Colour": ({"type": "string", "enum": ["red", "green"]}, True),
    "'Colour'": ({"type": "string", "enum": ["red", "green"]}, True),
    "Colour | None": ({"type": "string", "enum": ["red", "green"]}, False),
    "list[Colour]": ({"type": "array", "items": {"type": "string", "enum": ["red", "green"]}}, True),
    "Level": ({"type": "integer", "enum": [1, 2]}, True),
    "Unit": ({"type": "string", "enum": ["kilometre", "mile"]}, True),
    "Mood": ({"type": "string", "enum": ["good", "bad"]}, True),
    "Mixed": ({"type": ["integer", "string", "boolean"], "enum": [1, "text", True]}, True),
    "Season": ({"type": "integer", "enum": [1, 2]}, True),
    "Grade": ({"type": "string", "enum": ["a", "b"]}, True),
    "Side": ({"type": "string", "enum": ["left", "right"]}, True),
    "Code": ({"type": "integer", "enum": [200, 410]}, True),
    "dict[Colour, int]": (
        {"type": "object", "additionalProperties": INTEGER, "propertyNames": {"enum": ["red", "green"]}},
        True,
    ),
    "dict[Mode, Any]": (
        {"type": "object", "additionalProperties": True, "propertyNames": {"enum": ["fast", "slow"]}},
        True,
    ),
    "Point": (POINT, True),
    "Optional[Point]": (POINT, False),
    "list[Point]": ({"type": "array", "items": POINT}, True),
    "dict[str, Point]": ({"type": "object", "additionalProperties": POINT}, True),
    "tuple[Point, int]": (
        {"type": "array", "prefixItems": [POINT, INTEGER], "minItems": 2, "maxItems": 2},
        True,
    ),
    "Point | int": ({"anyOf": [POINT, INTEGER]}, True),
    "Place": (PLACE, True),
    "Box": (_object({"corner": POINT, "size": INTEGER}, "corner"), True),
    "Pair": (_object({"left": INTEGER, "right": STRING}, "left", "right"), True),
    "Movie": (_object({"title": STRING, "year": INTEGER}, "title"), True),
    "Loose": (_object({"title": STRING, "year": {"type": "integer", "description": "The year."}}, "title"), True),
    "Sequel": (_object({"title": STRING, "year": INTEGER, "part": INTEGER}, "title", "part"), True),
    "Options": (_object({"depth": INTEGER, "labels": {"type": "array", "items": STRING}}, "depth"), True),
    "Item": (ITEM, True),
    "Item0": (ID, True),
    "Order": (
        _object(
            {
                "id": INTEGER,
                "items": {"type": "array", "items": ID},
                "by": {"type": "object", "additionalProperties": ID},
            },
            "id",
            "items",
            closed=False,
        ),
        True,
    ),
    "Ids": ({"type": "array", "items": INTEGER}, True),
    "Mode": ({"type": "string", "enum": ["fast", "slow"]}, True),
    "Mode | None": ({"type": "string", "enum": ["fast", "slow"]}, False),
    "UserId": (INTEGER, True),
    "list[UserId]": ({"type": "array", "items": INTEGER}, True),
    "Positive": ({"type": "integer", "exclusiveMinimum": 0}, True),
    "list[Positive]": ({"type": "array", "items": {"type": "integer", "exclusiveMinimum": 0}}, True),
    "Annotated[int, Ge(1), Le(5)]": ({"type": "integer", "minimum": 1, "maximum": 5}, True),
    "Annotated[int | None, Field(ge=0)]": ({"type": "integer", "minimum": 0}, False),
    "Annotated[str, MaxLen(5)]": ({"type": "string", "maxLength": 5}, True),
    "Annotated[list[int], Field(min_length=2)]": ({"type": "array", "items": INTEGER, "minItems": 2}, True),
    "Annotated[str, Field(ge=1, unknown=2, min_length=-1)]": (STRING, True),
    "Annotated[int, Field(ge=LIMIT)]": (INTEGER, True),
    "Annotated[int, Field(multiple_of=0)]": (INTEGER, True),
    "set[int]": ({"type": "array", "items": INTEGER, "uniqueItems": True}, True),
    "frozenset": ({"type": "array", "items": {}, "uniqueItems": True}, True),
    "Collection[str]": ({"type": "array", "items": STRING}, True),
    "date": ({"type": "string", "format": "date"}, True),
    "dt.datetime": ({"type": "string", "format": "date-time"}, True),
    "dt.time | None": ({"type": "string", "format": "time"}, False),
    "uuid.UUID": ({"type": "string", "format": "uuid"}, True),
    "Decimal": (NUMBER, True),
    "pathlib.Path": (STRING, True),
    "Mapping[str, list[Optional[Literal['a']]]]": (
        {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string", "enum": ["a"]}}},
        True,
    ),
}


def _source(annotation: str, *, described: bool = True) -> str:
    args = "\n\n        Args:\n            p: What it is.\n        " if described else ""
    return DECLARATIONS + textwrap.dedent(f'''
    def f(p: {annotation}):
        """Does it.{args}"""
    ''')


@pytest.mark.parametrize("annotation", CORPUS)
def test_schema_of_a_declared_type(annotation: str) -> None:
    schema, required = CORPUS[annotation]
    parameters = from_source(_source(annotation), "source_code").parameters
    assert parameters["properties"] == {"p": {**schema, "description": "What it is."}}
    assert parameters["required"] == (["p"] if required else [])


@pytest.mark.parametrize(
    ("annotation", "description"),
    [
        ("Annotated[int, 'Metres.']", "Metres."),
        ("Annotated[int, Field(description='Metres.')]", "Metres."),
        ("Positive", "More than nothing."),
        ("Annotated[Positive, 'Metres.']", "Metres."),
    ],
)
def test_annotated_describes_a_parameter_without_an_entry_in_the_docstring(annotation: str, description: str) -> None:
    parameters = from_source(_source(annotation, described=False), "source_code").parameters
    assert parameters["properties"]["p"]["description"] == description


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        ("Node", "'Node' contains itself"),
        ("list[Node]", "field 'next' of 'Node': 'Node' contains itself"),
        ("Chain", "nested too deeply"),
        ("Weird", "field 'data' of 'Weird': 'bytes' is not one of"),
        ("Broken", "the members of enum 'Broken' must be literals"),
        ("Empty", "the members of enum 'Empty' must be literals"),
        ("Plain", "'Plain' is not one of"),
        ("Missing", "'Missing' is not one of"),
        ("LIMIT", "'3' is not one of"),
        ("dict[Level, int]", "must be str, because JSON objects have only such keys"),
    ],
)
def test_refused_types_name_the_parameter_and_the_field(annotation: str, words: str) -> None:
    with pytest.raises(ToolSourceInvalid) as caught:
        from_source(_source(annotation), "source_code")
    assert words in caught.value.message
    assert caught.value.metadata["parameter"] == "p"


def test_size_of_a_schema_is_bounded() -> None:
    classes = ["@dataclass\nclass C0:\n    a: int\n"]
    for n in range(1, 12):
        fields = "".join(f"    f{k}: C{n - 1}\n" for k in range(10))
        classes.append(f"@dataclass\nclass C{n}:\n{fields}")
    source = "\n".join(classes) + '\ndef f(p: C11):\n    """F.\n\n    Args:\n        p: x\n    """\n'
    with pytest.raises(ToolSourceInvalid, match="consists of more than 2,000 parts"):
        from_source(source, "source_code")


def test_statement_of_a_type_alias() -> None:
    source = 'type Ids = list[int]\ndef f(p: Ids):\n    """F.\n\n    Args:\n        p: x\n    """\n'
    try:
        compile(source, "source", "exec")
    except SyntaxError:
        with pytest.raises(ToolSourceInvalid, match="not valid Python"):
            from_source(source, "source_code")
        return
    assert from_source(source, "source_code").parameters["properties"]["p"]["items"] == INTEGER


def test_use_of_a_pydantic_model_is_known() -> None:
    assert read_source(_source("list[Order]"), "source_code").model == "Order"
    assert read_source(_source("Point"), "source_code").model is None


_DEFINITIONS_OF_LIMITS = {
    "itself alone": ("A = Union[A]", "has more than 200 members"),
    "itself in quotes": ("A = 'Union[A]'", "has more than 200 members"),
    "each other": ("A = Union[B]\nB = Union[A]", "has more than 200 members"),
    "itself in metadata": ("A = Annotated[A, 'x']", "nested too deeply"),
    "itself in a list": ("A = list[A]", "nested too deeply"),
    "many characters": (
        f"class E(Enum):\n    M = {'v' * 9_000!r}\n@dataclass\nclass A:\n"
        + "".join(f"    f{n}: E\n" for n in range(99)),
        "its schema has more than 250,000 characters",
    ),
    "many parses of one text": (
        f"B = 'Annotated[int, Field(ge=[{'1,' * 4_000}])]'\n"
        "@dataclass\nclass C:\n"
        + "".join(f"    f{n}: B\n" for n in range(40))
        + "@dataclass\nclass D:\n"
        + "".join(f"    f{n}: C\n" for n in range(40))
        + "@dataclass\nclass A:\n    d: D\n    e: D\n",
        "consists of more than 2,000 parts",
    ),
    "names of an enum that are numbers": (
        f"A = StrEnum('A', [0x{'f' * 5_000}])",
        "must be literals of str, int or bool",
    ),
}


@pytest.mark.parametrize(
    ("declarations", "words"), _DEFINITIONS_OF_LIMITS.values(), ids=[*_DEFINITIONS_OF_LIMITS.keys()]
)
def test_hostile_declarations_are_refused_in_bounded_time(declarations: str, words: str) -> None:
    """The process that reads them would be stopped only after seconds, and small sources are read in the service."""
    source = f'{declarations}\ndef f(p: A):\n    """F.\n\n    Args:\n        p: x\n    """\n'
    started = time.process_time()
    with pytest.raises(ToolSourceInvalid, match=words):
        from_source(source, "source_code")
    assert time.process_time() - started < 2  # hours, or 16 s, without the bounds


def test_depth_of_classes_counts_however_they_are_reached() -> None:
    classes = ["@dataclass\nclass C0:\n    a: int\n"]
    classes += [f"@dataclass\nclass C{n}:\n    a: C{n - 1}\n" for n in range(1, 60)]
    parameters = ", ".join(f"p{n}: C{n}" for n in range(60))
    described = "".join(f"        p{n}: x\n" for n in range(60))
    source = "\n".join(classes) + f'\ndef f({parameters}):\n    """F.\n\n    Args:\n{described}    """\n'
    with pytest.raises(ToolSourceInvalid, match="nested too deeply"):
        from_source(source, "source_code")
