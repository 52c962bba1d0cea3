"""The conversion of arguments to the types that a function declares."""

import dataclasses
import enum
import typing
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NewType, NotRequired, Protocol, TypedDict

import pydantic
import pytest
from mnemesh_sandbox.inside.values import ArgumentInvalid, converted, plain


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Point:
    x: int
    colour: Colour | None
    y: int = 0


@dataclass
class Nested:
    points: list[Point]
    by: dict[Colour, tuple[Point, ...]] = dataclasses.field(default_factory=dict)


class Box(NamedTuple):
    corner: Point
    size: int | None


class Movie(TypedDict):
    level: Level
    shown: NotRequired[date]


class Model(pydantic.BaseModel):
    point: Point
    level: Level = Level.LOW
    note: str | None


UserId = NewType("UserId", int)
POINT = {"x": 1, "colour": "red"}
A_POINT = Point(1, Colour.RED)
A_UUID = "5c0e4a5e-6b0a-4b65-8a50-0f3a5d1b6d11"


def _converted(value: Any, annotation: Any) -> Any:
    def tool(p): ...  # type: ignore[no-untyped-def]

    tool.__annotations__ = {"p": annotation}
    return converted(tool, {"p": value}, globals())["p"]


class Sized(Protocol):
    """A protocol that cannot be checked at run time."""

    size: int


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        ("red", Colour, Colour.RED),
        ("red", "Colour", Colour.RED),
        (1, Level, Level.LOW),
        (["red"], list[Colour], [Colour.RED]),
        ({"red": 1}, dict[Colour, int], {Colour.RED: 1}),
        ({"a": "red"}, Mapping[str, Colour], {"a": Colour.RED}),
        (POINT, Point, A_POINT),
        ({"x": 1}, Point, Point(1, None)),
        (POINT, Point | None, A_POINT),
        (None, Point | None, None),
        (POINT, typing.Optional["Point"], A_POINT),
        (5, Point | int, 5),
        (POINT, int | Point, A_POINT),
        ("red", str | Colour, "red"),
        ({"points": [POINT], "by": {"red": [POINT]}}, Nested, Nested([A_POINT], {Colour.RED: (A_POINT,)})),
        ({"corner": POINT}, Box, Box(A_POINT, None)),
        ({"level": 1, "shown": "2026-01-02"}, Movie, {"level": Level.LOW, "shown": date(2026, 1, 2)}),
        ({"point": POINT}, Model, Model(point=A_POINT, note=None)),
        ([POINT], Annotated[list[Point], "points"], [A_POINT]),
        (5, UserId, 5),
        ([1, 1], set[int], {1}),
        ([1], set, {1}),
        ([1], frozenset[int], frozenset({1})),
        ([1, "red"], tuple[int, Colour], (1, Colour.RED)),
        ([1], tuple, (1,)),
        ("2026-01-02", date, date(2026, 1, 2)),
        ("2026-01-02T03:04:05Z", datetime, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("03:04", time, time(3, 4)),
        (1.1, Decimal, Decimal("1.1")),
        ("a/b", Path, Path("a/b")),
        (A_UUID, uuid.UUID, uuid.UUID(A_UUID)),
        ({"a": 1}, Any, {"a": 1}),
        ({"a": 1, "b": None}, dict[str, Any], {"a": 1, "b": None}),
        ({"a": "x"}, dict[str, Any] | None, {"a": "x"}),
        ([1, "x"], list[Any], [1, "x"]),
        ("x", Sized, "x"),
        ({"a": 1}, "Unknown", {"a": 1}),
        ({"a": 1}, dict, {"a": 1}),
        ("x", Callable[[int], str], "x"),
        (5, None, 5),
    ],
)
def test_values_have_the_declared_types(value: Any, annotation: Any, expected: Any) -> None:
    result = _converted(value, annotation)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("value", "annotation", "words"),
    [
        ("blue", Colour, "Argument 'p' is invalid: 'blue' is not a valid Colour"),
        ({"x": 1, "colour": "blue"}, Point, "Argument 'p' has an invalid field 'colour': is invalid: 'blue' is not"),
        ({"z": 1}, Point, "got an unexpected keyword argument 'z'"),
        ({"point": 5}, Model, "validation error"),
        ([[1]], set[list[int]], "Argument 'p' cannot be a set: unhashable type"),
        ("soon", date, "Argument 'p' is invalid: Invalid isoformat string"),
        ("x", Decimal, "Argument 'p' is invalid"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(value: Any, annotation: Any, words: str) -> None:
    with pytest.raises(ArgumentInvalid) as caught:
        _converted(value, annotation)
    assert words in str(caught.value)


def test_an_unknown_annotation_does_not_hide_the_others() -> None:
    def tool(a: "Unknown", b: Colour): ...  # type: ignore[name-defined, no-untyped-def]  # noqa: F821

    assert converted(tool, {"a": {"x": 1}, "b": "red"}, globals()) == {"a": {"x": 1}, "b": Colour.RED}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Colour.RED, "red"),
        ({1}, [1]),
        (A_POINT, {"x": 1, "colour": Colour.RED, "y": 0}),
        (Model(point=A_POINT, note="n"), {"point": {"x": 1, "colour": Colour.RED, "y": 0}, "level": 1, "note": "n"}),
        (Point, Point),
        (5, 5),
    ],
)
def test_results_in_their_json_form(value: Any, expected: Any) -> None:
    assert plain(value) == expected
