"""The next action of the rehearsal: a tool call or a reply."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mnemesh_orchestrator.llm.history import (
    THINKING,
)
from mnemesh_orchestrator.llm.rehearsal.turn import Turn
from mnemesh_orchestrator.model.models import ToolSchema

DISCLAIMER: Final = (
    "[mnemesh/rehearsal: this is not a language model. Fixed rules answer, so that the memory can be seen at work.]"
)
HEARTBEAT: Final = "request_heartbeat"


@dataclass(frozen=True, slots=True)
class CallTool:
    """Calls a tool; `reason` is the thought that goes with it."""

    tool: str
    arguments: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, slots=True)
class Reply:
    """Replies with a text."""

    text: str


def required_call(name: str, tools: Mapping[str, ToolSchema], turn: Turn) -> CallTool:
    """Returns a call that a rule requires, not the user."""
    call = CallTool(name, {}, "A rule wants this tool called.")
    return call if name not in tools else complete(call, tools[name], turn, is_final=False)


def complete(call: CallTool, tool: ToolSchema, turn: Turn, *, is_final: bool) -> CallTool:
    """Returns the call with everything that its schema requires: the thought first, the heartbeat last."""
    properties = tool.parameters.get("properties") or {}
    arguments: dict[str, Any] = {THINKING: f"Rehearsal rule: {call.reason}"} if THINKING in properties else {}
    arguments.update(call.arguments)
    for name in tool.parameters.get("required") or ():
        if name not in arguments and name != HEARTBEAT:
            arguments[name] = _default_value(properties.get(name) or {}, turn)
    if HEARTBEAT in properties:
        arguments[HEARTBEAT] = not is_final
    return CallTool(call.tool, arguments, call.reason)


def _default_value(schema: Mapping[str, Any], turn: Turn) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    by_type: dict[str, Any] = {"integer": 1, "number": 1, "boolean": False, "array": [], "object": {}, "null": None}
    return by_type.get(str(kind), turn.text[:200] or "rehearsal")
