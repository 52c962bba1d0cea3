"""The plan of an answer's calls: parsed arguments, prefilled values, problems, and calls that wait for a decision."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mnemesh_types.messages import Message, ToolCall

from mnemesh_orchestrator.builtin.arguments import ParseFailure, check, parse, storage_problem
from mnemesh_orchestrator.builtin.schemas import AGENT_MESSAGE_TOOLS
from mnemesh_orchestrator.llm.formats import is_structured, text_problem, value_problem
from mnemesh_orchestrator.loop.rules import OutputUnmapped, Prefilled, RulesSolver
from mnemesh_orchestrator.loop.toolbox import SPEAKING, SPOKEN, Toolbox
from mnemesh_orchestrator.model.approvals import PlannedCall
from mnemesh_orchestrator.model.models import ResponseFormat, ToolSchema
from mnemesh_orchestrator.model.rules import Conditional


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
