"""Executions: one call of a tool, stored or ad hoc, and its result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_no_nul

from mnemesh_tools.errors import SandboxTooWeak, ToolArgumentsInvalid, ToolRequirementsUnmet
from mnemesh_tools.model.definitions import parse_parameters
from mnemesh_tools.model.json_values import parse_object
from mnemesh_tools.model.tools import (
    DEFAULT_RETURN_CHARS,
    DEFAULT_TIMEOUT_SECONDS,
    Requirement,
    SourceType,
    Tool,
    ToolType,
)
from mnemesh_tools.sandbox import AgentView, Outcome, OutcomeStatus
from mnemesh_tools.schema import SourceFacts, coerce

AD_HOC_SOURCE: Final = "ad_hoc.source_code"
MAX_ENVIRONMENT_CHARS: Final = 256_000
MAX_ARGUMENTS_CHARS: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class AdHocTool:
    """A tool that is executed without being stored."""

    source_code: str
    source_type: SourceType = SourceType.PYTHON
    name: str | None = None
    """The function to call; None calls the last one of the source."""
    args_json_schema: str | None = None
    pip_requirements: tuple[Requirement, ...] = ()
    npm_requirements: tuple[Requirement, ...] = ()
    allow_network: bool = False


@dataclass(frozen=True, slots=True)
class Invocation:
    """The inputs of one execution."""

    arguments: str = ""
    """A JSON object as text; empty for no arguments."""
    environment: Mapping[str, str] = field(default_factory=dict)
    agent: AgentView | None = None
    """The agent as the tool sees it."""
    timeout_seconds: float | None = None
    """The caller's limit. The tool's own limit applies if it is lower."""


@dataclass(frozen=True, slots=True)
class Execution:
    """The result of one execution."""

    outcome: Outcome
    result: str
    """The returned value as text, or the error."""
    truncated: bool
    """The result is longer than the tool's limit and was cut."""


@dataclass(frozen=True, slots=True)
class ExecutableTool:
    """The properties of a tool, stored or ad hoc, that its execution needs."""

    source: str
    source_type: SourceType
    function: str
    parameters: Mapping[str, Any]
    requirements: tuple[Requirement, ...]
    allow_network: bool
    takes_agent: bool
    """The function has the parameter `agent_state`. Other tools neither read nor change the agent's blocks."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    return_chars: int = DEFAULT_RETURN_CHARS


def executable_from_tool(tool: Tool, *, takes_agent: bool) -> ExecutableTool:
    """Returns the executable form of a stored tool.

    Args:
        tool: The tool.
        takes_agent: Its function has the parameter `agent_state`.

    Raises:
        InvalidArgument: The tool has no source, because it is not a custom tool.
    """
    spec = tool.spec
    if spec.type is not ToolType.CUSTOM or spec.source_code is None:
        raise InvalidArgument(
            f"{spec.name} is a tool of type {spec.type.value} and has no source. Only custom tools can be executed.",
            field="tool_id",
        )
    return ExecutableTool(
        source=spec.source_code,
        source_type=spec.source_type,
        function=spec.name,
        parameters=json.loads(spec.json_schema)["parameters"],
        requirements=(*spec.pip_requirements, *spec.npm_requirements),
        allow_network=spec.allow_network,
        takes_agent=takes_agent,
        timeout_seconds=spec.timeout_seconds,
        return_chars=spec.return_char_limit,
    )


def require_valid_ad_hoc(tool: AdHocTool) -> None:
    """Checks an ad hoc tool before its source is read.

    Raises:
        InvalidArgument: A field breaks its rule.
        ToolRequirementsUnmet: The source is not Python.
    """
    require_no_nul(tool.source_code, AD_HOC_SOURCE)
    if tool.source_type is not SourceType.PYTHON:
        raise ToolRequirementsUnmet("This server executes tools in Python only.", field="ad_hoc.source_type")


def executable_from_ad_hoc(tool: AdHocTool, facts: SourceFacts) -> ExecutableTool:
    """Returns the executable form of an ad hoc tool.

    Args:
        tool: The tool.
        facts: The facts about the function that it calls.

    Raises:
        InvalidArgument: `args_json_schema` is not a JSON schema of type object.
        ToolSourceInvalid: The source yields no schema.
    """
    if tool.args_json_schema is None:
        parameters: Mapping[str, Any] = facts.require_schema(AD_HOC_SOURCE).parameters
    else:
        parameters = parse_parameters(tool.args_json_schema, "ad_hoc.args_json_schema")
    return ExecutableTool(
        source=tool.source_code,
        source_type=tool.source_type,
        function=facts.name,
        parameters=parameters,
        requirements=(*tool.pip_requirements, *tool.npm_requirements),
        allow_network=tool.allow_network,
        takes_agent=facts.takes_agent,
    )


def require_executable(tool: ExecutableTool) -> None:
    """Checks that this server can execute the tool.

    Raises:
        ToolRequirementsUnmet: The tool needs packages, or a language other than Python.
        SandboxTooWeak: The tool needs the network.
    """
    if tool.source_type is not SourceType.PYTHON:
        raise ToolRequirementsUnmet("This server executes tools in Python only.", missing=tool.source_type.value)
    if tool.requirements:
        names = ", ".join(requirement.name for requirement in tool.requirements)
        raise ToolRequirementsUnmet(
            f"{tool.function} needs {names}. This server provides only the Python standard library.", missing=names
        )
    if tool.allow_network:
        raise SandboxTooWeak(
            f"{tool.function} needs the network. This server gives no tool access to it.", missing="network"
        )


def require_environment(environment: Mapping[str, str]) -> None:
    """Checks the environment variables of an execution.

    Raises:
        InvalidArgument: A name or a value is not possible in a process, or the environment is too long.
    """
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise InvalidArgument(
                'environment must not have empty names, "=" in a name, or NUL characters.', field="environment"
            )
    if sum(len(name) + len(value) for name, value in environment.items()) > MAX_ENVIRONMENT_CHARS:
        raise InvalidArgument(f"environment must be at most {MAX_ENVIRONMENT_CHARS:,} characters.", field="environment")


def parse_arguments(arguments: str) -> dict[str, Any]:
    """Returns the decoded arguments of a call.

    Raises:
        ToolArgumentsInvalid: The text is not a JSON object, or is too long.
    """
    if len(arguments) > MAX_ARGUMENTS_CHARS:
        raise ToolArgumentsInvalid(f"arguments must be at most {MAX_ARGUMENTS_CHARS:,} characters.", field="arguments")
    try:
        return parse_object(arguments or "{}", "arguments")
    except InvalidArgument as error:
        raise ToolArgumentsInvalid(error.message, field="arguments") from error


def coerced_arguments(tool: ExecutableTool, arguments: str) -> dict[str, Any]:
    """Returns the arguments of a call, converted to the types that the tool's schema declares.

    Raises:
        ToolArgumentsInvalid: The arguments do not match the schema, or cannot, because an earlier version stored a
            schema that is not valid.
    """
    parsed = parse_arguments(arguments)
    try:
        return coerce(parsed, tool.parameters, "arguments")
    except (TypeError, AttributeError, ValueError) as error:
        raise ToolArgumentsInvalid(
            f"The arguments of {tool.function} cannot be checked: its schema is not a JSON schema. Update the tool.",
            field="arguments",
        ) from error


def time_limit(tool: ExecutableTool, timeout_seconds: float | None) -> float:
    """Returns the seconds that an execution may take: the tool's limit, or the caller's if it is lower.

    Raises:
        InvalidArgument: The caller's limit is not positive.
    """
    if timeout_seconds is None:
        return tool.timeout_seconds
    if timeout_seconds <= 0:
        raise InvalidArgument("timeout must be greater than 0.", field="timeout")
    return min(timeout_seconds, tool.timeout_seconds)


def execution_from_outcome(tool: ExecutableTool, outcome: Outcome) -> Execution:
    """Returns the execution with this outcome. A result that is longer than the tool's limit is cut, with a note."""
    total = max(outcome.chars, len(outcome.text))
    if outcome.status is not OutcomeStatus.SUCCESS or total <= tool.return_chars:
        return Execution(outcome, outcome.text, truncated=False)
    note = f"[The result was cut: it has {total} characters, and the limit is {tool.return_chars}.]"
    return Execution(outcome, f"{outcome.text[: tool.return_chars]}\n{note}", truncated=True)
