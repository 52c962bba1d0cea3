"""Schemas of Python source."""

import asyncio
import threading
from typing import Any

import pytest
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, Principal
from mnemesh_testkit.timeouts import scaled
from mnemesh_tools.errors import ToolSourceInvalid
from mnemesh_tools.schema import SourceFacts, from_source, read_in_process, read_source
from mnemesh_tools.usecases import tools
from mnemesh_tools.usecases.tools import SourceReader
from mnemesh_types.tools import SourceType

STRING, INTEGER = {"type": "string"}, {"type": "integer"}

# The schema of one parameter by its annotation and default, and whether it is required.
CORPUS: dict[str, tuple[dict[str, Any], bool]] = {
    "p": (STRING, True),
    "p=None": (STRING, False),
    "p: str": (STRING, True),
    "p: int": (INTEGER, True),
    "p: float": ({"type": "number"}, True),
    "p: bool": ({"type": "boolean"}, True),
    "p: None": ({"type": "null"}, False),
    "p: int = 3": (INTEGER, False),
    "p: 'int'": (INTEGER, True),
    "p: Optional[int]": (INTEGER, False),
    "p: typing.Optional[str] = None": (STRING, False),
    "p: int | None": (INTEGER, False),
    "p: 'int | None' = None": (INTEGER, False),
    "p: Union[int, None]": (INTEGER, False),
    "p: Union[int, str]": ({"anyOf": [INTEGER, STRING]}, True),
    "p: int | str | None": ({"anyOf": [INTEGER, STRING]}, False),
    "p: Union[int, int]": (INTEGER, True),
    "p: list": ({"type": "array", "items": {}}, True),
    "p: List": ({"type": "array", "items": {}}, True),
    "p: list[int]": ({"type": "array", "items": INTEGER}, True),
    "p: t.List[List[str]]": ({"type": "array", "items": {"type": "array", "items": STRING}}, True),
    "p: list[Optional[int]]": ({"type": "array", "items": INTEGER}, True),
    "p: Literal['a', 'b']": ({"type": "string", "enum": ["a", "b"]}, True),
    "p: Literal[1, -2]": ({"type": "integer", "enum": [1, -2]}, True),
    "p: Literal[True]": ({"type": "boolean", "enum": [True]}, True),
    "p: Literal[1, 'a']": ({"type": ["integer", "string"], "enum": [1, "a"]}, True),
    "p: Literal['a', None]": ({"type": "string", "enum": ["a"]}, False),
    "p: tuple[int, str]": (
        {"type": "array", "prefixItems": [INTEGER, STRING], "minItems": 2, "maxItems": 2},
        True,
    ),
    "p: Tuple[int, ...]": ({"type": "array", "items": INTEGER}, True),
    "p: tuple": ({"type": "array", "items": {}}, True),
    "p: dict": ({"type": "object"}, True),
    "p: Dict[str, int]": ({"type": "object", "additionalProperties": INTEGER}, True),
    "p: dict[str, list[int]]": (
        {"type": "object", "additionalProperties": {"type": "array", "items": INTEGER}},
        True,
    ),
    "p: Dict[str, Any]": ({"type": "object", "additionalProperties": True}, True),
    "p: Any": ({}, True),
    "p: Annotated[int, 'metres']": (INTEGER, True),
    "*, p: int": (INTEGER, True),
    "*, p: int = 1": (INTEGER, False),
}


def _source(signature: str, args: str = "    Args:\n        p: What it is.\n") -> str:
    return f'def f({signature}) -> str:\n    """Does it.\n\n{args}    """\n    return ""\n'


@pytest.mark.parametrize("signature", CORPUS)
def test_schema_of_an_annotation(signature: str) -> None:
    schema, required = CORPUS[signature]
    parameters = from_source(_source(signature), "source_code").parameters
    assert parameters["properties"] == {"p": {**schema, "description": "What it is."}}
    assert parameters["required"] == (["p"] if required else [])


@pytest.mark.parametrize(
    "section",
    [
        "    :param p: What it is.\n    :type p: int\n    :return: Nothing.\n",
        "    Parameters\n    ----------\n    p : int\n        What it is.\n\n    Returns\n    -------\n    str\n",
        "    Parameters:\n        p (int): What it is.\n\n    Raises:\n        ValueError: Sometimes.\n",
    ],
)
def test_docstrings_of_other_styles(section: str) -> None:
    found = from_source(_source("p: int", section), "source_code")
    assert found.parameters["properties"] == {"p": {**INTEGER, "description": "What it is."}}
    assert found.description == "Does it."


def test_complete_schema_of_a_tool() -> None:
    source = '''
import json
LIMIT = 3

def helper(x): ...

async def roll_dice(self, sides: int, agent_state: "AgentState", labels: list[str], times: int = 1, client=None):
    """Rolls dice.

    The dice are fair,
    and so on.

    Args:
        sides (int): How many sides.
        labels: One label
            per die.
        times (int, optional): How often.

    Returns:
        str: The rolls.
    """
    raise SystemExit("never run here")
'''
    assert from_source(source, "source_code").to_dict() == {
        "name": "roll_dice",
        "description": "Rolls dice.\n\nThe dice are fair,\nand so on.",
        "parameters": {
            "type": "object",
            "properties": {
                "sides": {"type": "integer", "description": "How many sides."},
                "labels": {"type": "array", "items": {"type": "string"}, "description": "One label\nper die."},
                "times": {"type": "integer", "description": "How often."},
            },
            "required": ["sides", "labels"],
        },
    }
    assert list(from_source(source, "source_code").parameters["properties"]) == ["sides", "labels", "times"]


def test_schema_describes_the_last_function_or_the_named_one() -> None:
    source = 'def a():\n    """A."""\n\ndef b():\n    """B."""\n\nX = 1\n'
    assert from_source(source, "source_code").name == "b"
    assert from_source(source, "source_code", name="a").description == "A."


def test_source_is_never_executed(capsys: pytest.CaptureFixture[str]) -> None:
    from_source('print("ran")\nraise SystemExit\n' + _source("p: int"), "source_code")
    assert capsys.readouterr().out == ""


def test_missing_description_names_the_parameter() -> None:
    with pytest.raises(ToolSourceInvalid) as caught:
        from_source(_source("p: int", args=""), "tool.source_code")
    assert caught.value.message == "Parameter 'p' in function 'f' lacks a description in the docstring"
    assert caught.value.metadata == {"field": "tool.source_code", "parameter": "p"}


def test_reading_needs_no_complete_docstring() -> None:
    """The description is known, and whether the function takes the agent."""
    facts = read_source('def f(a, agent_state):\n    """Adds."""\n', "source_code")
    assert (facts.name, facts.description, facts.takes_agent, facts.schema) == ("f", "Adds.", True, None)
    assert facts.parameter == "a"


async def test_large_source_is_read_in_a_process_with_a_time_limit() -> None:
    large = "x = 1\n" * 5000 + _source("p: int")
    facts = await SourceReader().read(DEFAULT_PRINCIPAL, (SourceType.PYTHON, large), "source_code")
    assert facts == read_source(large, "source_code")
    source = SourceType.PYTHON, "x = 1\n" * 5000 + "def f(p): ..."
    undocumented = await SourceReader().read(DEFAULT_PRINCIPAL, source, "source_code")
    with pytest.raises(ToolSourceInvalid, match="has no docstring") as caught:
        undocumented.require_schema("source_code")
    assert caught.value.field == "source_code"
    with pytest.raises(ToolSourceInvalid, match=r"cannot be parsed within 0\.1 seconds"):
        read_in_process("python", large, "source_code", None, 0.1)


class _Reading:
    """Reads of large sources, which end when they may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_end = threading.Event()
        self.begun: list[str] = []
        self._changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def read(_language: str, source: str, *_: object) -> SourceFacts:
            self.begun.append(source[0])
            loop.call_soon_threadsafe(self._changed.set)
            assert self.may_end.wait(scaled(30))
            return read_source("def f(): ...", "source_code")

        monkeypatch.setattr(tools, "read_in_process", read)

    async def until(self, count: int) -> None:
        while len(self.begun) < count:
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), scaled(30))


async def _begin(reader: SourceReader, caller: Principal, letter: str) -> asyncio.Task[SourceFacts]:
    task = asyncio.create_task(reader.read(caller, (SourceType.PYTHON, letter * 30_000), "source_code"))
    for _ in range(5):
        await asyncio.sleep(0)
    return task


async def test_cancelled_callers_do_not_make_room_for_more_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, reader = _Reading(monkeypatch), SourceReader()
    calls = [await _begin(reader, DEFAULT_PRINCIPAL, letter) for letter in "abcd"]
    await reading.until(2)
    for call in calls:
        call.cancel()
    last = await _begin(reader, DEFAULT_PRINCIPAL, "y")
    assert sorted(reading.begun) == ["a", "b"]
    reading.may_end.set()
    assert (await last).name == "f"
    assert sorted(reading.begun) == ["a", "b", "y"], "the others were cancelled before they began"
    assert all(isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*calls, return_exceptions=True))


async def test_large_sources_of_one_organization_leave_room_for_those_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, reader = _Reading(monkeypatch), SourceReader(per_organization=1)
    calls = [await _begin(reader, DEFAULT_PRINCIPAL, letter) for letter in "abc"]
    other = await _begin(reader, Principal("org-other", "user-other"), "o")
    await reading.until(2)
    assert sorted(reading.begun) == ["a", "o"]
    reading.may_end.set()
    assert [facts.name for facts in await asyncio.gather(other, *calls)] == ["f"] * 4


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (_source("p: dict[int, str]"), "the keys of 'dict[int, str]' must be str"),
        (_source("p: deque[int]"), "'deque[int]' is not one of str, int"),
        (_source("p: set[bytes]"), "'bytes' is not one of str, int"),
        (_source("p: list[int, str]"), "'list[int, str]' is not one of str, int"),
        (_source("p: Callable[[int], str]"), "'Callable[[int], str]' is not one of str, int"),
        (_source("p: Params"), "'Params' is not one of"),
        (_source("p: Annotated[()]"), "'Annotated[()]' names no type"),
        (_source("p: Literal[{[]}]"), "contains a value that is not a literal"),
        (_source("p: Literal[0x" + "f" * 5000 + "]"), "must have at most 64 bits"),
        (_source("p: Literal['\\ud800']"), "half of a character"),
        (_source("p: Literal['\\0']"), "NUL character"),
        (_source("p: " + "|".join(f"A{n}" for n in range(1500))), "has more than 200 members"),
        (_source("p: Union[" + "int," * 1500 + "]"), "has more than 200 members"),
        (_source("p: Literal[" + "1," * 1500 + "]"), "has more than 200 literals"),
        (_source("p: tuple[" + "int," * 1500 + "]"), "has more than 200 members"),
        (_source("p: '" + "int|" * 3000 + "int'"), "is not an annotation"),
        (_source("p: " + "list[" * 60 + "int" + "]" * 60), "nested too deeply"),
        (_source("p", args="    Args:\n        p: x\n\n    Args:\n"), "one of its sections is empty or repeated"),
        (_source("p", args="    Args:\n        p: \\ud800\n"), "half of a character"),
        (_source(",".join(f"p{n}" for n in range(101))), "has more than 100 parameters"),
        (_source("p: Literal[1.5]"), "may contain only str, int, bool and None"),
        (_source("p: Literal[x]"), "contains a value that is not a literal"),
        (_source("p: 'int['"), "'int[' is not an annotation"),
        (_source("*p: int"), "is '*p': a tool must declare each of its parameters"),
        (_source("**p: int"), "is '**p': a tool must declare each of its parameters"),
        (_source("p: int, /"), "is positional-only"),
        ("def f():\n    pass", "has no docstring"),
        ("class Tool: ...", "no function at its top level"),
        ("", "no function at its top level"),
        ("def f(:", "not valid Python: invalid syntax in line 1"),
        ("def f():\n  x\0", "not valid Python"),
        ("x = " + "(" * 5000, "not valid Python"),
        ("#" * 250_001, "at most 250,000"),
        (f'def {"f" * 49}():\n    """F."""', "is longer than 48"),
        ('def grüß():\n    """F."""', "is not an identifier"),
    ],
)
def test_source_without_a_schema_is_refused_with_the_reason(source: str, words: str) -> None:
    with pytest.raises(ToolSourceInvalid) as caught:
        from_source(source, "source_code")
    assert words in caught.value.message
    assert caught.value.field == "source_code"
