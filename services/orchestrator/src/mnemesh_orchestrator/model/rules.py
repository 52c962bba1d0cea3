"""Tool rules as an agent carries them: constraints on the order and number of tool calls within one turn.

Tagged structs, so that an agent's stored record tells them apart.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from mnemesh_kit.errors import InvalidArgument
from msgspec import Struct


class RunFirst(Struct, frozen=True, tag="run_first"):
    """The tool is the first of the turn. `arguments` override the model's: a JSON object as text."""

    tool_name: str
    arguments: str | None = None


class ExitLoop(Struct, frozen=True, tag="exit_loop"):
    """The turn ends after the tool."""

    tool_name: str


class ContinueLoop(Struct, frozen=True, tag="continue_loop"):
    """The turn goes on after the tool."""

    tool_name: str


@dataclass(frozen=True, slots=True, eq=False)
class ConditionalOutcome:
    """What a tool returns, and the tool that is next where it does.

    Python holds True, 1 and 1.0 to be equal; as outcomes they are three.
    """

    output: bool | int | float | str
    child: str

    def __eq__(self, other: object) -> bool:
        """Equal in value and in type."""
        if not isinstance(other, ConditionalOutcome):
            return NotImplemented
        return self._identity == other._identity

    def __hash__(self) -> int:
        """Of what equality compares."""
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[str, object, str]:
        return type(self.output).__name__, self.output, self.child


class Conditional(Struct, frozen=True, tag="conditional"):
    """What the tool returns decides which tool is next.

    Where no outcome names it: `default_child`, or any tool where there is
    none; with `require_output_mapping` it is an error instead.
    """

    tool_name: str
    outcomes: tuple[ConditionalOutcome, ...] = ()
    default_child: str | None = None
    require_output_mapping: bool = False


@dataclass(frozen=True, slots=True)
class ChildArguments:
    """Arguments that override the model's when a child is called right after its parent: a JSON object as text."""

    tool_name: str
    arguments: str


class ConstrainChildTools(Struct, frozen=True, tag="constrain_child_tools"):
    """After the tool, only its children."""

    tool_name: str
    children: tuple[str, ...]
    child_arguments: tuple[ChildArguments, ...] = ()


class MaxCountPerStep(Struct, frozen=True, tag="max_count_per_step"):
    """At most so many calls of the tool within a turn."""

    tool_name: str
    max_count: int


class ParentLastTool(Struct, frozen=True, tag="parent_last_tool"):
    """The children may be called only right after the tool, and right after it nothing else may."""

    tool_name: str
    children: tuple[str, ...]


class RequiredBeforeExit(Struct, frozen=True, tag="required_before_exit"):
    """The turn may not end without the tool."""

    tool_name: str


class RequiresApproval(Struct, frozen=True, tag="requires_approval"):
    """A person decides about each call of the tool."""

    tool_name: str


ToolRule = (
    RunFirst
    | ExitLoop
    | ContinueLoop
    | Conditional
    | ConstrainChildTools
    | MaxCountPerStep
    | ParentLastTool
    | RequiredBeforeExit
    | RequiresApproval
)


def checked_rules(rules: Iterable[ToolRule], field: str = "tool_rules") -> tuple[ToolRule, ...]:
    """The rules in their order, equal ones once.

    Raises:
        InvalidArgument: a rule names no tool, gives arguments to a tool that is not its child or that are no JSON
            object, allows less than one call, or names an outcome twice. Metadata: field, as in `tool_rules[2]`.
    """
    kept = tuple(dict.fromkeys(rules))
    for index, rule in enumerate(kept):
        if (problem := _problem(rule)) is not None:
            raise InvalidArgument(f"{field}[{index}] {problem}.", field=f"{field}[{index}]")
    return kept


def _problem(rule: ToolRule) -> str | None:
    if not rule.tool_name:
        return "names no tool"
    match rule:
        case RunFirst(arguments=str() as arguments) if not _is_object(arguments):
            return "has arguments that are no JSON object"
        case MaxCountPerStep(max_count=count) if count < 1:
            return "must allow one call at least"
        case ConstrainChildTools(children=children, child_arguments=given):
            return _children_problem(children, given)
        case ParentLastTool(children=children):
            return _children_problem(children)
        case _:
            return _conditional_problem(rule) if isinstance(rule, Conditional) else None


def _children_problem(children: tuple[str, ...], given: tuple[ChildArguments, ...] = ()) -> str | None:
    if not children or not all(children):
        return "needs children with names"
    for node in given:
        if node.tool_name not in children:
            return f"gives arguments to {node.tool_name}, which is none of its children"
        if not _is_object(node.arguments):
            return f"has arguments of {node.tool_name} that are no JSON object"
    return None


def _conditional_problem(rule: Conditional) -> str | None:
    if not rule.outcomes:
        return "needs an outcome"
    if not all(outcome.child for outcome in rule.outcomes) or rule.default_child == "":
        return "leads to a tool without a name"
    outputs = {(type(outcome.output), outcome.output) for outcome in rule.outcomes}
    if len(outputs) < len(rule.outcomes):
        return "names an outcome twice"
    return None


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
