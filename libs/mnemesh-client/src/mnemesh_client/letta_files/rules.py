"""Tool rules of Letta, in both directions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from mnemesh.agents.v1.agents_pb2 import (
    ChildArguments,
    ConditionalOutcome,
    ConditionalRule,
    ConstrainChildToolsRule,
    ContinueLoopRule,
    ExitLoopRule,
    MaxCountPerStepRule,
    ParentLastToolRule,
    RequiredBeforeExitRule,
    RequiresApprovalRule,
    RunFirstRule,
    ToolRule,
)

from mnemesh_client.letta_files.values import Row, carried_json, json_text


def tool_rule(rule: Row) -> ToolRule:
    """Returns a rule.

    Raises:
        ValueError: its type is not known.
    """
    read = _READERS.get(str(rule.get("type")))
    if read is None:
        raise ValueError(f"the tool rule of {rule.get('tool_name')!r} has the unknown type {rule.get('type')!r}")
    return read(rule)


def letta_rule(rule: ToolRule) -> dict[str, Any]:
    """Returns a rule in Letta's form."""
    kind = rule.WhichOneof("rule")
    if kind is None:
        raise ValueError("a tool rule is empty")
    inner = getattr(rule, kind)
    return {"tool_name": inner.tool_name, "type": kind, "prompt_template": None, **_letta_fields(kind, inner)}


def _letta_fields(kind: str, inner: Any) -> dict[str, Any]:
    match kind:
        case "run_first":
            return {"args": carried_json(inner.arguments) or None}
        case "conditional":
            return {
                "default_child": inner.default_child if inner.HasField("default_child") else None,
                "child_output_mapping": {_letta_output(outcome): outcome.child for outcome in inner.outcomes},
                "require_output_mapping": inner.require_output_mapping,
            }
        case "constrain_child_tools":
            nodes = [{"name": item.tool_name, "args": carried_json(item.arguments)} for item in inner.child_arguments]
            return {"children": list(inner.children), "child_arg_nodes": nodes or None}
        case "max_count_per_step":
            return {"max_count_limit": inner.max_count}
        case "parent_last_tool":
            return {"children": list(inner.children)}
        case _:
            return {}


def _letta_output(outcome: ConditionalOutcome) -> str:
    kind = outcome.WhichOneof("output") or "text"
    value = getattr(outcome, kind)
    return value if isinstance(value, str) else json.dumps(value)


def _conditional(rule: Row) -> ToolRule:
    mapping: Mapping[Any, str] = rule.get("child_output_mapping") or {}
    return ToolRule(
        conditional=ConditionalRule(
            tool_name=rule["tool_name"],
            outcomes=[_outcome(output, child) for output, child in mapping.items()],
            default_child=rule.get("default_child"),
            require_output_mapping=bool(rule.get("require_output_mapping")),
        )
    )


def _outcome(output: Any, child: str) -> ConditionalOutcome:
    """JSON has keys of text only: "true" and "5" are the value of which they are the text."""
    value = output
    if isinstance(output, str):
        try:
            parsed = json.loads(output)
        except (ValueError, RecursionError):
            parsed = output
        value = parsed if isinstance(parsed, bool | int | float) else output
    match value:
        case bool():
            return ConditionalOutcome(boolean=value, child=child)
        case int():
            return ConditionalOutcome(integer=value, child=child)
        case float():
            return ConditionalOutcome(number=value, child=child)
        case _:
            return ConditionalOutcome(text=str(value), child=child)


def _constrain_child_tools(rule: Row) -> ToolRule:
    nodes = rule.get("child_arg_nodes") or ()
    return ToolRule(
        constrain_child_tools=ConstrainChildToolsRule(
            tool_name=rule["tool_name"],
            children=rule.get("children") or (),
            child_arguments=[
                ChildArguments(tool_name=node["name"], arguments=json_text(node["args"]) or "")
                for node in nodes
                if node.get("args")
            ],
        )
    )


def _max_count(rule: Row) -> ToolRule:
    inner = MaxCountPerStepRule(tool_name=rule["tool_name"], max_count=rule["max_count_limit"])
    return ToolRule(max_count_per_step=inner)


def _parent_last(rule: Row) -> ToolRule:
    return ToolRule(
        parent_last_tool=ParentLastToolRule(tool_name=rule["tool_name"], children=rule.get("children") or ())
    )


def _run_first(rule: Row) -> ToolRule:
    return ToolRule(run_first=RunFirstRule(tool_name=rule["tool_name"], arguments=json_text(rule.get("args"))))


_READERS: Final[Mapping[str, Callable[[Row], ToolRule]]] = {
    "run_first": _run_first,
    "exit_loop": lambda rule: ToolRule(exit_loop=ExitLoopRule(tool_name=rule["tool_name"])),
    "continue_loop": lambda rule: ToolRule(continue_loop=ContinueLoopRule(tool_name=rule["tool_name"])),
    "conditional": _conditional,
    "constrain_child_tools": _constrain_child_tools,
    "max_count_per_step": _max_count,
    "parent_last_tool": _parent_last,
    "required_before_exit": lambda rule: ToolRule(
        required_before_exit=RequiredBeforeExitRule(tool_name=rule["tool_name"])
    ),
    "requires_approval": lambda rule: ToolRule(requires_approval=RequiresApprovalRule(tool_name=rule["tool_name"])),
}
