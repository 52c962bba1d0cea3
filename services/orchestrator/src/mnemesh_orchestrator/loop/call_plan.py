"""The plan of an answer's calls: parsed arguments, prefilled values, problems, and calls that wait for a decision."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final

import msgspec
from mnemesh_types.messages import Message, ToolCall

from mnemesh_orchestrator.builtin.arguments import ParseFailure, check, parse, storage_problem
from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.builtin.schemas import AGENT_MESSAGE_TOOLS, with_heartbeat, with_thinking
from mnemesh_orchestrator.llm.schemas import is_structured, text_problem, value_problem, with_message_format
from mnemesh_orchestrator.loop.rules import OutputUnmapped, Prefilled, RulesSolver
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.approvals import PlannedCall
from mnemesh_orchestrator.model.custom_tools import CustomTool
from mnemesh_orchestrator.model.models import ResponseFormat, ToolSchema, validator
from mnemesh_orchestrator.model.rules import Conditional
from mnemesh_orchestrator.model.run_config import ClientTool

SPEAKING: Final = "send_message"
SPOKEN: Final = "message"


@dataclass(frozen=True)
class Toolbox:
    """The names of the agent's built-in tools, and its stored tools."""

    builtin: tuple[str, ...]
    custom: tuple[CustomTool, ...]
    schemas: tuple[ToolSchema, ...]
    """The schemas that the model receives, with the arguments that the loop adds."""
    plain: tuple[ToolSchema, ...]
    """The schemas of the tools themselves."""
    client: frozenset[str] = frozenset()
    """The tools that the client runs."""
    gated: frozenset[str] = frozenset()
    """The tools whose calls wait for a person's decision or for the client's return."""
    approval_schemas: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The gated tools of which only the calls wait whose arguments match one of these schemas."""
    speech_format: ResponseFormat = ResponseFormat()
    """The format of the speaking tool's message."""
    completed: "Callable[[tuple[CustomTool, ...]], Toolbox] | None" = None
    """Returns the toolbox with the stored tools; None if it has them. They could not be read when the turn began."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all tools, in the agent's order."""
        return tuple(schema.name for schema in self.plain)

    @cached_property
    def _plain_by_name(self) -> dict[str, ToolSchema]:
        return {schema.name: schema for schema in self.plain}

    def schema(self, name: str) -> ToolSchema | None:
        """Returns the schema of a tool, or None if the agent has no such tool."""
        return self._plain_by_name.get(name)

    def waits(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Returns whether a call of a tool with these arguments waits for a decision."""
        schemas = self.approval_schemas.get(name)
        if name not in self.gated or schemas is None:
            return name in self.gated
        return any(validator(schema).is_valid(dict(arguments)) for schema in schemas)

    def custom_tool(self, name: str) -> CustomTool | None:
        """Returns the stored tool of that name, or None."""
        return next((tool for tool in self.custom if tool.name == name), None)

    def offered(self, allowed: Sequence[str]) -> tuple[ToolSchema, ...]:
        """Returns the schemas of the tools that the rules allow next."""
        if len(allowed) == len(self.schemas):
            return self.schemas
        return tuple(schema for schema in self.schemas if schema.name in allowed)


def make_toolbox(
    agent: Agent,
    builtin: BuiltinTools,
    custom: tuple[CustomTool, ...],
    solver: RulesSolver,
    *,
    heartbeat: bool,
    thinking: bool,
    client_tools: Sequence[ClientTool] = (),
    speech_format: ResponseFormat | None = None,
    is_whole: bool = True,
) -> Toolbox:
    """Returns the toolbox of an agent. A stored tool hides a built-in one of its name; a client's tool hides both.

    Without `is_whole`, the stored tools could not be read, and the toolbox can be completed later.
    """
    completed = None
    if not is_whole:
        completed = partial(
            make_toolbox, agent, builtin, solver=solver, heartbeat=heartbeat, thinking=thinking,
            client_tools=client_tools, speech_format=speech_format,
        )  # fmt: skip
    client = frozenset(tool.name for tool in client_tools)
    custom = tuple(tool for tool in custom if tool.name not in client)
    stored = {tool.name: tool for tool in custom}
    plain: list[ToolSchema] = []
    for attached in agent.tools:
        if attached.name in client:
            continue
        if (tool := stored.get(attached.name)) is not None:
            plain.append(msgspec.json.decode(tool.json_schema, type=ToolSchema))
        elif attached.builtin and attached.name in builtin.names:
            plain.append(builtin.schema(attached.name))
    plain += [ToolSchema(tool.name, tool.description, json.loads(tool.parameters)) for tool in client_tools]
    offered = []
    for schema in plain:
        if speech_format is not None and schema.name == SPEAKING:
            schema = with_message_format(schema, speech_format, SPOKEN)  # noqa: PLW2901
        shown = with_heartbeat(schema) if heartbeat and not solver.is_terminal(schema.name) else schema
        offered.append(with_thinking(shown) if thinking else shown)
    names = tuple(schema.name for schema in plain if schema.name not in stored and schema.name not in client)
    gated = client | {schema.name for schema in plain if _waits(agent, solver, schema.name, stored.get(schema.name))}
    schemas = {
        name: found
        for name in gated - client
        if not _always_waits(agent, name, stored.get(name)) and (found := solver.approval_schemas(name))
    }
    speech_format = speech_format or ResponseFormat()
    return Toolbox(names, custom, tuple(offered), tuple(plain), client, gated, schemas, speech_format, completed)


def _always_waits(agent: Agent, name: str, custom: CustomTool | None) -> bool:
    """Returns whether every call of a tool waits, because of the agent's setting or the tool's default."""
    attached = agent.tool(name)
    is_set = attached is not None and attached.requires_approval is not None
    return is_set or (custom is not None and custom.requires_approval)


def _waits(agent: Agent, solver: RulesSolver, name: str, custom: CustomTool | None) -> bool:
    """Returns whether calls of a tool wait for a person: the agent's setting, else a rule, else the tool's default."""
    attached = agent.tool(name)
    if attached is not None and attached.requires_approval is not None:
        return attached.requires_approval
    return solver.needs_approval(name) or (custom is not None and custom.requires_approval)


def plan_calls(message: Message, toolbox: Toolbox, solver: RulesSolver) -> tuple[PlannedCall, ...]:
    """Returns how each call of an answer will run. Values that rules prefill replace those of the model.

    An argument that neither the model nor a rule gives stays missing.
    """
    planned: list[PlannedCall] = []
    for ordinal, call in enumerate(message.tool_calls):
        item = planned_call(ordinal, call, toolbox, solver.prefilled(call.name))
        # A call behind one that ends the turn is not run; if that one fails, the call is refused until it is requested.
        is_behind_exit = any(solver.is_terminal(before.call.name) and before.problem is None for before in planned)
        planned.append(replace(item, gated=not is_behind_exit and _is_gated(item, toolbox, solver)))
        # Prefilled values depend on the calls before, not on their results.
        solver = solver.after(call.name, "")
    return tuple(planned)


def with_gates(planned: Sequence[PlannedCall], gated: Sequence[int]) -> tuple[PlannedCall, ...]:
    """Returns the calls; those with the given ordinals wait for a decision."""
    return tuple(replace(item, gated=item.ordinal in gated) for item in planned)


def _is_gated(item: PlannedCall, toolbox: Toolbox, solver: RulesSolver) -> bool:
    """Returns whether a call waits for a decision. A call that cannot run is refused without asking.

    A rule about the output of an earlier call of the same answer cannot be applied yet, so the call waits.
    """
    name = item.call.name
    if item.problem is not None or not toolbox.waits(name, item.arguments):
        return False
    if item.ordinal and any(isinstance(rule, Conditional) for rule in solver.rules):
        return True
    try:
        return name in solver.allowed(toolbox.names)
    except OutputUnmapped:
        return False


def planned_call(ordinal: int, call: ToolCall, toolbox: Toolbox, prefilled: Mapping[str, Prefilled]) -> PlannedCall:
    """Returns how a call will run: with its arguments checked as far as its schema allows, or with its problem."""
    schema = toolbox.schema(call.name)
    if schema is None:
        known = ", ".join(toolbox.names) or "none"
        return PlannedCall(ordinal, call, {}, problem=f"Error: there is no tool {call.name} (the tools: {known}).")
    parsed = parse(call.arguments, schema)
    if isinstance(parsed, ParseFailure):
        return PlannedCall(ordinal, call, {}, problem=parsed.text)
    values = {**parsed.values, **{name: argument.value for name, argument in prefilled.items()}}
    if prefilled and (unstorable := storage_problem(values)) is not None:
        return PlannedCall(ordinal, call, {}, problem=f"Error: the arguments cannot be stored: {unstorable}.")
    if call.name == SPEAKING and is_structured(toolbox.speech_format) and SPOKEN in values:
        text, problem = _spoken(values[SPOKEN], toolbox.speech_format)
        if problem is not None:
            return PlannedCall(ordinal, call, {}, problem=f"Error: {SPOKEN} is not what it has to be: {problem}.")
        values[SPOKEN] = text
    item = PlannedCall(ordinal, call, values, parsed.request_heartbeat, parsed.thinking)
    if (fault := _rules_fault(prefilled, schema)) is not None:
        return replace(item, problem=fault, is_rules_fault=True)
    # The tools service coerces the arguments of custom tools by their own types.
    checked = check(item.arguments, schema) if call.name in toolbox.builtin else item.arguments
    if isinstance(checked, ParseFailure):
        return replace(item, problem=checked.text)
    return replace(item, arguments=checked)


def starts_runs(planned: Sequence[PlannedCall]) -> bool:
    """Returns whether a call may start runs of other agents."""
    return any(item.call.name in AGENT_MESSAGE_TOOLS for item in planned)


def _spoken(value: Any, format_: ResponseFormat) -> tuple[str, str | None]:
    """Returns a structured message as the text that is sent, and the problem with its format or None."""
    if isinstance(value, str):
        return value, text_problem(value, format_)
    return json.dumps(value, ensure_ascii=False), value_problem(value, format_)


def _rules_fault(prefilled: Mapping[str, Prefilled], schema: ToolSchema) -> str | None:
    """Returns why the tool does not take a prefilled value, in words that name the rule; None if it takes them all."""
    optional = replace(schema, parameters={**schema.parameters, "required": []})
    for name, argument in prefilled.items():
        checked = check({name: argument.value}, optional)
        if isinstance(checked, ParseFailure):
            problem = checked.text.removeprefix("Error: ")
            return f"Error: the rule {argument.rule} prefills the argument {name}, but {problem}. The tool was not run."
    return None
