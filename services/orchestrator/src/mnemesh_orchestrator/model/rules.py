"""Tools: the rules of an agent's tools, and the tools that users stored."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_json_object
from mnemesh_kit.unicode import MAX_TEXT_BYTES, well_formed
from mnemesh_types import tools
from mnemesh_types.messages import ImagePart, TextPart, ToolReturn, ToolStatus
from msgspec import Struct

from mnemesh_orchestrator.model.models import schema_problem


class RunFirst(Struct, frozen=True, tag="run_first"):
    """The tool is the first of the turn. `arguments` override the model's: a JSON object as text."""

    tool_name: str
    arguments: str | None = None


class ExitLoop(Struct, frozen=True, tag="exit_loop"):
    """The turn ends after the tool."""

    tool_name: str


class ContinueLoop(Struct, frozen=True, tag="continue_loop"):
    """The turn continues after the tool."""

    tool_name: str


@dataclass(frozen=True, slots=True, eq=False)
class ConditionalOutcome:
    """A result of a tool, and the tool that must follow it.

    Python treats True, 1 and 1.0 as equal. As outcomes they are different.
    """

    output: bool | int | float | str
    child: str

    def __eq__(self, other: object) -> bool:
        """Compares value and type."""
        if not isinstance(other, ConditionalOutcome):
            return NotImplemented
        return self._identity == other._identity

    def __hash__(self) -> int:
        """Hashes value and type."""
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[str, object, str]:
        return type(self.output).__name__, self.output, self.child


class Conditional(Struct, frozen=True, tag="conditional"):
    """The result of the tool decides which tool is next.

    Without a matching outcome it is `default_child`, or any tool if there is none. With `require_output_mapping` it is
    an error instead.
    """

    tool_name: str
    outcomes: tuple[ConditionalOutcome, ...] = ()
    default_child: str | None = None
    require_output_mapping: bool = False


@dataclass(frozen=True, slots=True)
class ChildArguments:
    """Arguments that override the model's if a child is called directly after its parent: a JSON object as text."""

    tool_name: str
    arguments: str


class ConstrainChildTools(Struct, frozen=True, tag="constrain_child_tools"):
    """Only the children may follow the tool."""

    tool_name: str
    children: tuple[str, ...]
    child_arguments: tuple[ChildArguments, ...] = ()


class MaxCountPerStep(Struct, frozen=True, tag="max_count_per_step"):
    """The tool may be called at most `max_count` times within a turn."""

    tool_name: str
    max_count: int


class ParentLastTool(Struct, frozen=True, tag="parent_last_tool"):
    """The children may be called only directly after the tool, and nothing else may be called then."""

    tool_name: str
    children: tuple[str, ...]


class RequiredBeforeExit(Struct, frozen=True, tag="required_before_exit"):
    """The turn may not end before the tool was called."""

    tool_name: str


class RequiresApproval(Struct, frozen=True, tag="requires_approval"):
    """A person decides about each call of the tool, or about those whose arguments match a JSON schema."""

    tool_name: str
    arguments_schema: str | None = None


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


def valid_rules(rules: Iterable[ToolRule], field: str = "tool_rules") -> tuple[ToolRule, ...]:
    """Returns the rules in their order, without duplicates.

    Raises:
        InvalidArgument: a rule names no tool, gives arguments to a tool that is not its child or that are not a JSON
            object, allows less than one call, or names an outcome twice. Metadata: field, such as `tool_rules[2]`.
    """
    kept = tuple(dict.fromkeys(rules))
    for index, rule in enumerate(kept):
        if (problem := _problem(rule)) is not None:
            raise InvalidArgument(f"{field}[{index}] {problem}.", field=f"{field}[{index}]")
    return kept


def _problem(rule: ToolRule) -> str | None:
    if not rule.tool_name:
        return "must name a tool"
    match rule:
        case RunFirst(arguments=str() as arguments) if not _is_object(arguments):
            return "must have arguments that are a JSON object"
        case RequiresApproval(arguments_schema=str() as schema):
            return _schema_problem(schema)
        case MaxCountPerStep(max_count=count) if count < 1:
            return "must allow at least one call"
        case ConstrainChildTools(children=children, child_arguments=arguments):
            return _children_problem(children, arguments)
        case ParentLastTool(children=children):
            return _children_problem(children)
        case _:
            return _conditional_problem(rule) if isinstance(rule, Conditional) else None


def _children_problem(children: tuple[str, ...], arguments: tuple[ChildArguments, ...] = ()) -> str | None:
    if not children or not all(children):
        return "must have children with names"
    for node in arguments:
        if node.tool_name not in children:
            return f"must not have arguments for {node.tool_name}, which is not one of its children"
        if not _is_object(node.arguments):
            return f"must have arguments for {node.tool_name} that are a JSON object"
    return None


def _conditional_problem(rule: Conditional) -> str | None:
    if not rule.outcomes:
        return "must have an outcome"
    if not all(outcome.child for outcome in rule.outcomes) or rule.default_child == "":
        return "must not lead to a tool without a name"
    outputs = {(type(outcome.output), outcome.output) for outcome in rule.outcomes}
    if len(outputs) < len(rule.outcomes):
        return "must not name an outcome twice"
    return None


def _schema_problem(schema: str) -> str | None:
    if not _is_object(schema):
        return "must have an arguments_schema that is a JSON object"
    problem = schema_problem(json.loads(schema))
    return None if problem is None else f"must have an arguments_schema that is a JSON schema: {problem}"


def _is_object(text: str) -> bool:
    try:
        require_json_object(text, "arguments")
    except InvalidArgument:
        return False
    return True


@dataclass(frozen=True, slots=True)
class CustomTool:
    """A stored tool that a turn may call.

    `json_schema` is {"name", "description", "parameters"} as text. A `builtin` tool is listed by the tools service and
    run by the orchestrator.
    """

    id: str
    name: str
    json_schema: str
    return_char_limit: int = 50_000
    requires_approval: bool = False
    parallel: bool = False
    idempotent: bool = False
    revision: int = 0
    builtin: bool = False
    mcp_server_id: str | None = None
    """The MCP server that runs the tool; None for a tool that runs in the sandbox."""
    mcp_tool_name: str = ""
    """Its name on that server."""


@dataclass(frozen=True, slots=True)
class CallProgress:
    """How far a call is, in a unit of the tool."""

    done: float
    total: float | None = None
    """The whole; None if the tool does not know it."""
    message: str | None = None


OnProgress = Callable[[CallProgress], None]


def no_progress(progress: CallProgress) -> None:
    """Ignores the progress of a call."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of running a tool."""

    ok: bool
    text: str
    stdout: tuple[str, ...] = ()
    stderr: tuple[str, ...] = ()
    images: tuple[ImagePart, ...] = ()
    """Images besides the text: inline, or files of the files service."""

    def to_return(self, call_id: str, name: str) -> ToolReturn:
        """Returns the result as the return of a call: every text is well-formed and at most 1 MB."""
        return ToolReturn(
            call_id,
            name,
            ToolStatus.SUCCESS if self.ok else ToolStatus.ERROR,
            (TextPart(well_formed(self.text, MAX_TEXT_BYTES)), *self.images),
            tuple(well_formed(line, MAX_TEXT_BYTES) for line in self.stdout),
            tuple(well_formed(line, MAX_TEXT_BYTES) for line in self.stderr),
        )


@dataclass(frozen=True, slots=True)
class Program:
    """Code that is run once. `tools` has the functions that it can call, with the names of their parameters."""

    code: str
    language: str = "python"
    tools: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The result of a program. `text` is the value of its last expression, or the error."""

    ok: bool
    text: str
    stdout: str = ""
    stderr: str = ""


AnswerCall = Callable[[str, str], Awaitable[ToolResult]]
"""Runs a tool that a program calls: its name, and its arguments as a JSON object."""


@dataclass(frozen=True, slots=True)
class WebQuery:
    """A search of the web. `category` is one of the values of the tool's argument."""

    query: str
    num_results: int = 10
    category: str | None = None
    include_text: bool = False
    include_domains: tuple[str, ...] = ()
    exclude_domains: tuple[str, ...] = ()
    start_published_at: datetime | None = None
    end_published_at: datetime | None = None
    user_location: str = ""


class WebPart(tools.WebPart):
    """A part of the text of a page."""

    __slots__ = ()

    @property
    def end(self) -> int:
        """The number of the first character after the part."""
        return self.start + len(self.text)
