"""The tools of one turn: what the model is offered, and what each name means."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import msgspec

from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.builtin.schemas import with_heartbeat, with_thinking
from mnemesh_orchestrator.llm.formats import speaking_in
from mnemesh_orchestrator.loop.rules import RulesSolver
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.custom_tools import CustomTool
from mnemesh_orchestrator.model.models import ResponseFormat, ToolSchema
from mnemesh_orchestrator.model.run_config import ClientTool

SPEAKING: Final = "send_message"
SPOKEN: Final = "message"


@dataclass(frozen=True)
class Toolbox:
    """Built-in tools of the agent by name, and its custom tools as the tools room has them."""

    builtin: tuple[str, ...]
    custom: tuple[CustomTool, ...]
    schemas: tuple[ToolSchema, ...]
    """As they are offered, with the arguments that the loop adds."""
    plain: tuple[ToolSchema, ...]
    """As they are executed."""
    client: frozenset[str] = frozenset()
    """Tools that the client runs."""
    gated: frozenset[str] = frozenset()
    """Tools whose calls wait for a decision: a person's, or the client's return."""
    speech_format: ResponseFormat = ResponseFormat()
    """What the message of the speaking tool has to be."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every tool, in the order of the agent's."""
        return tuple(schema.name for schema in self.plain)

    @cached_property
    def _plain_by_name(self) -> dict[str, ToolSchema]:
        return {schema.name: schema for schema in self.plain}

    def schema(self, name: str) -> ToolSchema | None:
        """What the tool takes, or None where the agent has no such tool."""
        return self._plain_by_name.get(name)

    def custom_tool(self, name: str) -> CustomTool | None:
        """The stored tool of that name, or None."""
        return next((tool for tool in self.custom if tool.name == name), None)

    def offered(self, allowed: Sequence[str]) -> tuple[ToolSchema, ...]:
        """The schemas of the tools that the rules allow next."""
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
) -> Toolbox:
    """The toolbox of an agent; a custom tool shadows a built-in one of its name, and a client's tool shadows both."""
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
            schema = speaking_in(schema, speech_format, SPOKEN)  # noqa: PLW2901
        shown = with_heartbeat(schema) if heartbeat and not solver.is_terminal(schema.name) else schema
        offered.append(with_thinking(shown) if thinking else shown)
    names = tuple(schema.name for schema in plain if schema.name not in stored and schema.name not in client)
    gated = client | {schema.name for schema in plain if _waits(agent, solver, schema.name, stored.get(schema.name))}
    return Toolbox(names, custom, tuple(offered), tuple(plain), client, gated, speech_format or ResponseFormat())


def _waits(agent: Agent, solver: RulesSolver, name: str, custom: CustomTool | None) -> bool:
    """Whether calls of a tool wait for a person: the agent's own switch, else a rule or the tool's default."""
    attached = agent.tool(name)
    if attached is not None and attached.requires_approval is not None:
        return attached.requires_approval
    return solver.needs_approval(name) or (custom is not None and custom.requires_approval)
