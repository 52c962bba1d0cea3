"""The tools of one turn: what the model is offered, and what each name means."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from engram_orchestrator.builtin.executor import BuiltinTools
from engram_orchestrator.builtin.schemas import with_heartbeat, with_thinking
from engram_orchestrator.loop.rules import RulesSolver
from engram_orchestrator.model.agents import Agent
from engram_orchestrator.model.memory import CustomTool
from engram_orchestrator.model.models import ToolSchema


@dataclass(frozen=True)
class Toolbox:
    """Built-in tools of the agent by name, and its custom tools as the tools room has them."""

    builtin: tuple[str, ...]
    custom: tuple[CustomTool, ...]
    schemas: tuple[ToolSchema, ...]
    """As they are offered, with the arguments that the loop adds."""
    plain: tuple[ToolSchema, ...]
    """As they are executed."""

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
) -> Toolbox:
    """The toolbox of an agent; a custom tool shadows a built-in one of its name."""
    stored = {tool.name: tool for tool in custom}
    plain: list[ToolSchema] = []
    for attached in agent.tools:
        if (tool := stored.get(attached.name)) is not None:
            plain.append(msgspec.json.decode(tool.json_schema, type=ToolSchema))
        elif attached.builtin and attached.name in builtin.names:
            plain.append(builtin.schema(attached.name))
    offered = []
    for schema in plain:
        shown = with_heartbeat(schema) if heartbeat and not solver.is_terminal(schema.name) else schema
        offered.append(with_thinking(shown) if thinking else shown)
    names = tuple(schema.name for schema in plain if schema.name not in stored)
    return Toolbox(names, custom, tuple(offered), tuple(plain))
