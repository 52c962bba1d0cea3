"""Executions of tools and of programs: their inputs, their limits and their results."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mnemesh_kit.errors import InvalidArgument, Unimplemented
from mnemesh_kit.secret_variables import require_valid_variables
from mnemesh_kit.text import require_no_nul, require_text
from mnemesh_sandbox import AgentView, Outcome, OutcomeStatus
from mnemesh_sandbox.egress.policy import ANY_HOST, NetworkConnection, NetworkGrant
from mnemesh_types.tools import AdHocTool, CodeLanguage, Requirement, SourceType, ToolType

from mnemesh_tools.errors import ToolArgumentsInvalid
from mnemesh_tools.model.definitions import network_grant, parse_object, parse_parameters, require_valid_packages
from mnemesh_tools.model.mcp_tools import McpImage, bounded_content
from mnemesh_tools.model.packages import (
    PackageSet,
    ServerSupport,
    packages_of,
    require_known_models,
    require_language,
    require_network_access,
    require_no_packages,
    require_packages_of_language,
)
from mnemesh_tools.model.tools import DEFAULT_RETURN_CHARS, DEFAULT_TIMEOUT_SECONDS, Tool
from mnemesh_tools.schema import SourceFacts, coerce, is_name

AD_HOC_SOURCE: Final = "ad_hoc.source_code"
MAX_ARGUMENTS_CHARS: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class Invocation:
    """The inputs of one execution."""

    arguments: str = ""
    """A JSON object as text; empty for no arguments."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    agent: AgentView | None = None
    """The agent as the tool sees it."""
    project_id: str | None = None
    """The project of the agent."""
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
    connections: tuple[NetworkConnection, ...] = ()
    images: tuple[McpImage, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecutableTool:
    """The properties of a tool, stored or ad hoc, that its execution needs."""

    source: str
    source_type: SourceType
    function: str
    parameters: Mapping[str, Any]
    pip_requirements: tuple[Requirement, ...]
    npm_requirements: tuple[Requirement, ...]
    network: NetworkGrant | None
    """The hosts that the tool may connect to."""
    takes_agent: bool
    """The function has the parameter `agent_state`. Other tools neither read nor change the agent's blocks."""
    signature: tuple[str, ...] = ()
    """The parameters of a function in TypeScript, in their order."""
    takes_object: bool = False
    """The function in TypeScript has one parameter, which is the object of all arguments."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    return_chars: int = DEFAULT_RETURN_CHARS

    @property
    def definitions(self) -> Mapping[str, Any]:
        """The types that the schema of its arguments defines. A source may name them without defining them."""
        found = self.parameters.get("$defs")
        return found if isinstance(found, Mapping) and self.source_type is SourceType.PYTHON else {}

    @property
    def packages(self) -> PackageSet:
        """The packages that it needs."""
        return packages_of(self.source_type, self.pip_requirements, self.npm_requirements)


def executable_from_tool(tool: Tool, facts: SourceFacts | None) -> ExecutableTool:
    """Returns the executable form of a stored tool.

    Args:
        tool: The tool.
        facts: The facts about its source; None if it is known to have a function of the name of the tool, without the
            parameter `agent_state`.

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
        function=spec.name if facts is None else facts.name,
        parameters=json.loads(spec.json_schema)["parameters"],
        pip_requirements=spec.pip_requirements,
        npm_requirements=spec.npm_requirements,
        network=network_grant(spec.network_hosts, "network_hosts", allow_network=spec.allow_network),
        takes_agent=facts is not None and facts.takes_agent,
        signature=() if facts is None else facts.parameters,
        takes_object=facts is not None and facts.takes_object,
        timeout_seconds=spec.timeout_seconds,
        return_chars=spec.return_char_limit,
    )


def require_valid_ad_hoc(tool: AdHocTool, support: ServerSupport) -> None:
    """Checks an ad hoc tool before its source is read.

    Raises:
        InvalidArgument: A field breaks its rule.
        ToolRequirementsUnmet: This server does not execute the language.
    """
    require_no_nul(tool.source_code, AD_HOC_SOURCE)
    require_valid_packages(tool.pip_requirements, "ad_hoc.pip_requirements")
    require_valid_packages(tool.npm_requirements, "ad_hoc.npm_requirements", is_pip=False)
    require_packages_of_language(tool.source_type, tool.pip_requirements, tool.npm_requirements, "ad_hoc.")
    require_language(tool.source_type, support, "ad_hoc.source_type")


def executable_from_ad_hoc(tool: AdHocTool, facts: SourceFacts) -> ExecutableTool:
    """Returns the executable form of an ad hoc tool.

    Args:
        tool: The tool.
        facts: The facts about the function that it calls.

    Raises:
        InvalidArgument: `args_json_schema` is not a JSON schema of type object.
        ToolSourceInvalid: The source yields no schema.
        ToolRequirementsUnmet: A parameter is a pydantic model.
    """
    require_known_models(facts, tool.pip_requirements, AD_HOC_SOURCE)
    if tool.args_json_schema is None:
        parameters: Mapping[str, Any] = facts.require_schema(AD_HOC_SOURCE).parameters
    else:
        parameters = parse_parameters(tool.args_json_schema, "ad_hoc.args_json_schema")
    return ExecutableTool(
        source=tool.source_code,
        source_type=tool.source_type,
        function=facts.name,
        parameters=parameters,
        pip_requirements=tool.pip_requirements,
        npm_requirements=tool.npm_requirements,
        network=network_grant(tool.network_hosts, "ad_hoc.network_hosts", allow_network=tool.allow_network),
        takes_agent=facts.takes_agent,
        signature=facts.parameters,
        takes_object=facts.takes_object,
    )


def require_executable(tool: ExecutableTool, support: ServerSupport) -> None:
    """Checks that this server can execute the tool.

    Raises:
        InvalidArgument: The packages are those of another language.
        ToolRequirementsUnmet: The tool needs packages or a language that this server does not provide.
        SandboxTooWeak: The operator does not allow the network access that the tool needs.
    """
    require_language(tool.source_type, support, "source_type")
    require_packages_of_language(tool.source_type, tool.pip_requirements, tool.npm_requirements, "")
    if not support.packages:
        require_no_packages(tool.pip_requirements, "pip_requirements")
        require_no_packages(tool.npm_requirements, "npm_requirements")
    require_network_access(
        support.network,
        "network_hosts",
        allow_network=tool.network is ANY_HOST,
        names_hosts=tool.network is not None and tool.network is not ANY_HOST,
    )


def require_environment(environment: Mapping[str, str]) -> None:
    """Checks the environment variables of an execution.

    Raises:
        InvalidArgument: A name or a value breaks its rule, or there are too many.
    """
    require_valid_variables(environment, "environment")


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
        ToolArgumentsInvalid: The arguments do not match the schema, or the schema is not valid.
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


def execution_from_outcome(return_chars: int, outcome: Outcome, connections: Sequence[NetworkConnection]) -> Execution:
    """Returns the execution with this outcome. A result that is longer than `return_chars` is cut, with a note."""
    total = max(outcome.chars, len(outcome.text))
    is_cut = outcome.status is OutcomeStatus.SUCCESS and total > return_chars
    parts, _ = bounded_content([McpImage(*image) for image in outcome.images], None, return_chars)
    images = tuple(part for part in parts if isinstance(part, McpImage))
    notes = [part for part in parts if isinstance(part, str)]
    if is_cut:
        notes.append(f"[The function output was truncated from {total} to {return_chars} characters.]")
    text = outcome.text[:return_chars] if is_cut else outcome.text
    text = "\n".join([text, *notes] if text or not notes else notes)
    return Execution(outcome, text, truncated=is_cut, connections=tuple(connections), images=images)


MAX_CODE_CHARS: Final = 250_000
MAX_TOOLS: Final = 200
MAX_CALLS: Final = 100
"""The calls of one program; further ones fail."""
_MAX_PARAMETERS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Program:
    """Code that is executed once."""

    code: str
    language: CodeLanguage = CodeLanguage.PYTHON
    environment: Mapping[str, str] = field(default_factory=dict)
    network_hosts: tuple[str, ...] = ()
    timeout_seconds: float | None = None
    tools: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The functions that it can call, with the names of their parameters."""


def require_valid_program(program: Program, support: ServerSupport) -> None:
    """Checks a program before it is executed.

    Raises:
        InvalidArgument: A field breaks its rule.
        Unimplemented: The service does not execute the language.
        ToolRequirementsUnmet: This server does not execute the language.
    """
    if program.language in (CodeLanguage.R, CodeLanguage.JAVA):
        raise Unimplemented(
            f"Code in {program.language.value} cannot be executed. Use python, javascript or typescript.",
            field="language",
        )
    source_type = SourceType.PYTHON if program.language is CodeLanguage.PYTHON else SourceType.TYPESCRIPT
    require_language(source_type, support, "language")
    require_text(program.code, "code", max_chars=MAX_CODE_CHARS)
    require_environment(program.environment)
    if len(program.tools) > MAX_TOOLS:
        raise InvalidArgument(f"tools must have at most {MAX_TOOLS} values.", field="tools")
    for name, parameters in program.tools.items():
        if not is_name(name) or len(parameters) > _MAX_PARAMETERS:
            raise InvalidArgument(f"tools: '{name[:100]}' is not a function that a program can call.", field="tools")


def program_seconds(program: Program) -> float:
    """Returns the seconds that a program may take.

    Raises:
        InvalidArgument: The limit of the caller is not positive.
    """
    if program.timeout_seconds is None:
        return DEFAULT_TIMEOUT_SECONDS
    if program.timeout_seconds <= 0:
        raise InvalidArgument("timeout must be greater than 0.", field="timeout")
    return min(program.timeout_seconds, DEFAULT_TIMEOUT_SECONDS)
