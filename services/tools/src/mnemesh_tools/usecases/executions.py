"""The use case of running a tool once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.principal import current_principal

from mnemesh_tools.errors import SandboxTooWeak, ToolArgumentsInvalid, ToolRequirementsUnmet
from mnemesh_tools.model.definitions import check_text, parsed_object, parsed_parameters
from mnemesh_tools.model.tools import (
    DEFAULT_RETURN_CHARS,
    DEFAULT_TIMEOUT_SECONDS,
    Requirement,
    SourceType,
    Tool,
    ToolType,
    shortened,
)
from mnemesh_tools.sandbox import Outcome, OutcomeStatus, Sandbox, SandboxUnavailable, Task
from mnemesh_tools.sandbox.task import AgentView
from mnemesh_tools.schema import coerce, from_source
from mnemesh_tools.schema.source import function_name
from mnemesh_tools.store.base import ToolStore

MAX_ENVIRONMENT_CHARS: Final = 256_000
MAX_ARGUMENTS_CHARS: Final = 1_048_576
_log = structlog.get_logger("mnemesh.tools.executions")


@dataclass(frozen=True, slots=True)
class AdHocTool:
    """A tool that is not stored."""

    source_code: str
    source_type: SourceType = SourceType.PYTHON
    name: str | None = None
    args_json_schema: str | None = None
    pip_requirements: tuple[Requirement, ...] = ()
    npm_requirements: tuple[Requirement, ...] = ()
    allow_network: bool = False


@dataclass(frozen=True, slots=True)
class Execution:
    """What came of running a tool."""

    outcome: Outcome
    result: str
    truncated: bool


@dataclass(frozen=True, slots=True)
class _Callable:
    """Everything that a run needs to know of a tool, stored or not."""

    source: str
    source_type: SourceType
    function: str
    parameters: Mapping[str, Any]
    requirements: tuple[Requirement, ...]
    allow_network: bool
    time_limit: float = DEFAULT_TIMEOUT_SECONDS
    return_chars: int = DEFAULT_RETURN_CHARS


class ExecutionService:
    """Runs user-written tools in the sandbox, each at most once and never again by itself."""

    def __init__(self, store: ToolStore, sandbox: Sandbox) -> None:
        self._store = store
        self._sandbox = sandbox

    async def execute_stored(
        self,
        tool_id: str,
        arguments: str,
        environment: Mapping[str, str],
        agent: AgentView | None,
        time_limit: float | None,
    ) -> Execution:
        """Runs a stored tool; see `_execute`. Raises `ToolNotFound`."""
        tool = await self._store.get(current_principal().organization_id, tool_id)
        return await self._execute(_of_stored(tool), arguments, environment, agent, time_limit)

    async def execute_ad_hoc(
        self,
        tool: AdHocTool,
        arguments: str,
        environment: Mapping[str, str],
        agent: AgentView | None,
        time_limit: float | None,
    ) -> Execution:
        """Runs source that is not stored; see `_execute`. Raises `ToolSourceInvalid`."""
        return await self._execute(_of_ad_hoc(tool), arguments, environment, agent, time_limit)

    async def _execute(
        self,
        tool: _Callable,
        arguments: str,
        environment: Mapping[str, str],
        agent: AgentView | None,
        time_limit: float | None,
    ) -> Execution:
        """Runs a tool with arguments coerced to its schema.

        Raises:
            ToolArgumentsInvalid: the arguments do not fit.
            ToolRequirementsUnmet: the tool needs packages, or a language other than Python.
            SandboxTooWeak: this host cannot isolate it, or cannot grant it the network it asks for.
        """
        _require_runnable(tool)
        _check_environment(environment)
        values = coerce(_decoded(arguments), tool.parameters, "arguments")
        if time_limit is not None and time_limit <= 0:
            raise InvalidArgument("timeout must be longer than 0.", field="timeout")
        seconds = tool.time_limit if time_limit is None else min(time_limit, tool.time_limit)
        try:
            outcome = await self._sandbox.run(Task(tool.source, tool.function, values, environment, agent), seconds)
        except SandboxUnavailable as error:
            raise SandboxTooWeak(str(error), missing=",".join(error.missing)) from error
        _log.info("executed", tool=tool.function, status=outcome.status.value, ms=round(outcome.duration * 1000, 1))
        if outcome.status is not OutcomeStatus.SUCCESS:
            return Execution(outcome, outcome.text, truncated=False)
        result, truncated = shortened(outcome.text, tool.return_chars, max(outcome.chars, len(outcome.text)))
        return Execution(outcome, result, truncated)


def _of_stored(tool: Tool) -> _Callable:
    spec = tool.spec
    if spec.type is not ToolType.CUSTOM or spec.source_code is None:
        raise InvalidArgument(
            f"{spec.name} is a tool of type {spec.type.value}: it has no source to run.", field="tool_id"
        )
    return _Callable(
        source=spec.source_code,
        source_type=spec.source_type,
        function=spec.name,
        parameters=parsed_object(spec.json_schema, "json_schema")["parameters"],
        requirements=(*spec.pip_requirements, *spec.npm_requirements),
        allow_network=spec.allow_network,
        time_limit=spec.timeout_seconds,
        return_chars=spec.return_char_limit,
    )


def _of_ad_hoc(tool: AdHocTool) -> _Callable:
    field = "ad_hoc.source_code"
    check_text(tool.source_code, field, None)
    if tool.source_type is not SourceType.PYTHON:
        raise ToolRequirementsUnmet("This server runs tools in Python only.", field="ad_hoc.source_type")
    if tool.args_json_schema is None:
        schema = from_source(tool.source_code, field, name=tool.name)
        function, parameters = schema.name, schema.parameters
    else:
        function = function_name(tool.source_code, field, tool.name)
        parameters = parsed_parameters(tool.args_json_schema, "ad_hoc.args_json_schema")
    return _Callable(
        source=tool.source_code,
        source_type=tool.source_type,
        function=function,
        parameters=parameters,
        requirements=(*tool.pip_requirements, *tool.npm_requirements),
        allow_network=tool.allow_network,
    )


def _require_runnable(tool: _Callable) -> None:
    if tool.source_type is not SourceType.PYTHON:
        raise ToolRequirementsUnmet("This server runs tools in Python only.", missing=tool.source_type.value)
    if tool.requirements:
        names = ", ".join(requirement.name for requirement in tool.requirements)
        raise ToolRequirementsUnmet(
            f"{tool.function} needs {names}, and tools run on the Python standard library alone here.", missing=names
        )
    if tool.allow_network:
        raise SandboxTooWeak(
            f"{tool.function} asks for the network, which this server grants no tool.", missing="network"
        )


def _check_environment(environment: Mapping[str, str]) -> None:
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise InvalidArgument("environment holds a name or a value that no process can have.", field="environment")
    if sum(len(name) + len(value) for name, value in environment.items()) > MAX_ENVIRONMENT_CHARS:
        raise InvalidArgument(f"environment is longer than {MAX_ENVIRONMENT_CHARS} characters.", field="environment")


def _decoded(arguments: str) -> dict[str, Any]:
    if len(arguments) > MAX_ARGUMENTS_CHARS:
        raise ToolArgumentsInvalid(
            f"The arguments are longer than {MAX_ARGUMENTS_CHARS} characters.", field="arguments"
        )
    try:
        return parsed_object(arguments or "{}", "arguments")
    except InvalidArgument as error:
        raise ToolArgumentsInvalid(error.message, field="arguments") from error
