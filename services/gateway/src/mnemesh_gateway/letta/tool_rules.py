"""Tool rules."""

from __future__ import annotations

from typing import Any, Final

from mnemesh.agents.v1 import agents_pb2 as agents_pb

from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.values import json_from_text, json_to_text, present, set_present

_LEGACY: Final = {
    "InitToolRule": "run_first",
    "TerminalToolRule": "exit_loop",
    "ContinueToolRule": "continue_loop",
    "ChildToolRule": "constrain_child_tools",
    "ParentToolRule": "parent_last_tool",
    "ConditionalToolRule": "conditional",
    "MaxCountPerStepToolRule": "max_count_per_step",
    "RequiredBeforeExitToolRule": "required_before_exit",
    "RequiresApprovalToolRule": "requires_approval",
}


def rule_from_proto(rule: agents_pb.ToolRule) -> dict[str, Any]:
    """Returns a tool rule in Letta's form."""
    kind = rule.WhichOneof("rule") or ""
    given: Any = getattr(rule, kind)
    found: dict[str, Any] = {"tool_name": given.tool_name, "type": kind, "prompt_template": None}
    match kind:
        case "run_first":
            found["args"] = json_from_text(given.arguments) if given.HasField("arguments") else None
        case "constrain_child_tools":
            nodes = [{"name": node.tool_name, "args": json_from_text(node.arguments)} for node in given.child_arguments]
            found |= {"children": list(given.children), "child_arg_nodes": nodes or None}
        case "parent_last_tool":
            found["children"] = list(given.children)
        case "max_count_per_step":
            found["max_count_limit"] = given.max_count
        case "conditional":
            found |= {
                "default_child": present(given, "default_child"),
                "child_output_mapping": {_output_text(outcome): outcome.child for outcome in given.outcomes},
                "require_output_mapping": given.require_output_mapping,
            }
    return found


def rule_to_proto(rule: dict[str, Any], index: int) -> agents_pb.ToolRule:
    """Returns a tool rule.

    Raises:
        ValidationFailed: the type is unknown, or a field is missing or has the wrong type.
    """
    loc = ("body", "tool_rules", index)
    kind = str(rule.get("type") or _kind_of(rule))
    kind = _LEGACY.get(kind, kind)
    name = rule.get("tool_name")
    if not isinstance(name, str):
        raise invalid_field("Field required", *loc, "tool_name")
    try:
        return _typed(kind, name, rule)
    except KeyError as error:
        raise invalid_field(f"Field required: {error.args[0]}", *loc) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise invalid_field(f"A field has the wrong type or value: {error}", *loc) from error


def _typed(kind: str, name: str, rule: dict[str, Any]) -> agents_pb.ToolRule:
    match kind:
        case "exit_loop":
            return agents_pb.ToolRule(exit_loop=agents_pb.ExitLoopRule(tool_name=name))
        case "continue_loop":
            return agents_pb.ToolRule(continue_loop=agents_pb.ContinueLoopRule(tool_name=name))
        case "required_before_exit":
            return agents_pb.ToolRule(required_before_exit=agents_pb.RequiredBeforeExitRule(tool_name=name))
        case "requires_approval":
            return agents_pb.ToolRule(requires_approval=agents_pb.RequiresApprovalRule(tool_name=name))
        case "run_first":
            first = agents_pb.RunFirstRule(tool_name=name)
            set_present(first, arguments=json_to_text(rule.get("args")))
            return agents_pb.ToolRule(run_first=first)
        case "max_count_per_step":
            return agents_pb.ToolRule(
                max_count_per_step=agents_pb.MaxCountPerStepRule(tool_name=name, max_count=rule["max_count_limit"])
            )
        case "parent_last_tool":
            return agents_pb.ToolRule(
                parent_last_tool=agents_pb.ParentLastToolRule(tool_name=name, children=rule["children"])
            )
        case "constrain_child_tools":
            nodes = [
                agents_pb.ChildArguments(tool_name=node["name"], arguments=json_to_text(node.get("args")) or "{}")
                for node in rule.get("child_arg_nodes") or ()
            ]
            child = agents_pb.ConstrainChildToolsRule(tool_name=name, children=rule["children"], child_arguments=nodes)
            return agents_pb.ToolRule(constrain_child_tools=child)
        case "conditional":
            outcomes = [_outcome(text, child) for text, child in rule["child_output_mapping"].items()]
            conditional = agents_pb.ConditionalRule(
                tool_name=name,
                outcomes=outcomes,
                require_output_mapping=bool(rule.get("require_output_mapping")),
            )
            set_present(conditional, default_child=rule.get("default_child"))
            return agents_pb.ToolRule(conditional=conditional)
    raise ValueError(f"type {kind!r} is unknown")


def _kind_of(rule: dict[str, Any]) -> str:
    """Returns the type of a rule that names none, by its fields."""
    if "child_output_mapping" in rule:
        return "conditional"
    if "max_count_limit" in rule:
        return "max_count_per_step"
    return "constrain_child_tools" if "children" in rule else "run_first"


def _outcome(text: str, child: str) -> agents_pb.ConditionalOutcome:
    """Returns an outcome. Keys of JSON are texts: those that name a boolean or an integer mean it."""
    if text in {"true", "True", "false", "False"}:
        return agents_pb.ConditionalOutcome(boolean=text.lower() == "true", child=child)
    if text.lstrip("-").isdecimal():
        return agents_pb.ConditionalOutcome(integer=int(text), child=child)
    return agents_pb.ConditionalOutcome(text=text, child=child)


def _output_text(outcome: agents_pb.ConditionalOutcome) -> str:
    kind = outcome.WhichOneof("output")
    value = getattr(outcome, kind) if kind is not None else ""
    return str(value).lower() if isinstance(value, bool) else str(value)
