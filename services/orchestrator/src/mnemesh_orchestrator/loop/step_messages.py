"""From what a model answered to the messages that are stored."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import ContentPart, Message, ReasoningPart, Role, TextPart, ToolCall, ToolReturn, ToolStatus
from msgspec import structs

from mnemesh_orchestrator.builtin.arguments import ParseFailure, check, parse, storable
from mnemesh_orchestrator.llm.formats import is_structured, text_problem, value_problem
from mnemesh_orchestrator.llm.port import FinishReason, LlmAnswer
from mnemesh_orchestrator.loop import approvals
from mnemesh_orchestrator.loop.message_events import shown_answer
from mnemesh_orchestrator.loop.rules import Prefilled, RulesSolver
from mnemesh_orchestrator.loop.state import Turn
from mnemesh_orchestrator.loop.toolbox import SPEAKING, SPOKEN, Toolbox
from mnemesh_orchestrator.model.approvals import PlannedCall
from mnemesh_orchestrator.model.context_window import ContextWindow
from mnemesh_orchestrator.model.events import MessageEvent
from mnemesh_orchestrator.model.models import ResponseFormat, ToolSchema
from mnemesh_orchestrator.model.run_config import RunConfig
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.prompt.packaging import heartbeat


def step_id(run_id: str, number: int) -> str:
    """The id of a run's step: the same after a restart."""
    return derive_id("step", run_id, str(number))


def call_id(step: str, ordinal: int) -> str:
    """mnemesh's own id of a call; providers repeat theirs. 29 characters, as every provider can take."""
    return "call_" + derive_id("call", step, str(ordinal)).removeprefix("call-").replace("-", "")[:24]


def answer_id(step: str) -> str:
    """The id of a step's assistant message, known before its first token."""
    return derive_id("message", step, "answer")


def input_id(run_id: str, ordinal: int) -> str:
    """The id of a message of a run's input."""
    return derive_id("message", run_id, "input", str(ordinal))


def unsaid_input(run: Run, window: ContextWindow) -> tuple[Message, ...]:
    """A run's input as the messages that will enter the window, dated when it was sent.

    None where the window holds them already: a run that is taken up after a
    crash, or a failed one that another takes up, may have committed its input.
    """
    said = {message.id for message in window.messages}
    if any(input_id(run_id, 0) in said for run_id in (run.id, *run.takes_up)):
        return ()
    return tuple(
        Message(
            id=input_id(run.id, ordinal),
            role=message.role,
            created_at=run.created_at,
            content=message.content,
            name=message.name,
            otid=message.otid,
            sender_id=message.sender_id,
            group_id=message.group_id,
            run_id=run.id,
            conversation_id=run.conversation_id,
        )
        for ordinal, message in enumerate(run.input)
    )


def answer_message(turn: Turn, step: str, answer: LlmAnswer, now: datetime) -> Message:
    """The assistant message of an answer, as the model gave it but for the ids of its calls."""
    calls = tuple(
        ToolCall(call_id(step, ordinal), call.name, call.arguments, call.provider_id)
        for ordinal, call in enumerate(answer.tool_calls)
    )
    content = answer.content
    if calls and turn.policy.requires_tool_call:
        # Where speaking is a tool, words beside a call are the agent thinking aloud.
        content = tuple(ReasoningPart(part.text) if isinstance(part, TextPart) else part for part in content)
    return Message(
        id=answer_id(step),
        role=Role.ASSISTANT,
        created_at=now,
        content=tuple(part for part in content if not (isinstance(part, TextPart) and not part.text)),
        tool_calls=calls,
        model=turn.model.info.handle,
        step_id=step,
        run_id=turn.run.id,
        conversation_id=turn.run.conversation_id,
    )


def format_problem(turn: Turn, message: Message) -> str | None:
    """Why plain words that end a turn are not in the agent's response format; None where they are, or need not be."""
    wanted = turn.response_format
    if wanted is None or not is_structured(wanted) or turn.policy.requires_tool_call or message.tool_calls:
        return None
    return text_problem(message.text, wanted) if message.content else None


def plan(message: Message, toolbox: Toolbox, solver: RulesSolver) -> tuple[PlannedCall, ...]:
    """How each call of an answer is to be carried out, with the arguments that rules give in place of the model's.

    Arguments that neither gave are never made up.
    """
    planned = []
    for ordinal, call in enumerate(message.tool_calls):
        item = _planned(ordinal, call, toolbox, solver.prefilled(call.name))
        planned.append(replace(item, gated=approvals.is_gated(item, toolbox, solver)))
        # What rules give depends on the calls before, not on what they return.
        solver = solver.after(call.name, "")
    return tuple(planned)


def _planned(ordinal: int, call: ToolCall, toolbox: Toolbox, prefilled: Mapping[str, Prefilled]) -> PlannedCall:
    schema = toolbox.schema(call.name)
    if schema is None:
        known = ", ".join(toolbox.names) or "none"
        return PlannedCall(ordinal, call, {}, problem=f"Error: there is no tool {call.name} (the tools: {known}).")
    parsed = parse(call.arguments, schema)
    if isinstance(parsed, ParseFailure):
        return PlannedCall(ordinal, call, {}, problem=parsed.text)
    values = {**parsed.values, **{name: given.value for name, given in prefilled.items()}}
    if call.name == SPEAKING and is_structured(toolbox.speech_format) and SPOKEN in values:
        said, problem = _spoken(values[SPOKEN], toolbox.speech_format)
        if problem is not None:
            return PlannedCall(ordinal, call, {}, problem=f"Error: {SPOKEN} is not what it has to be: {problem}.")
        values[SPOKEN] = said
    item = PlannedCall(ordinal, call, values, parsed.request_heartbeat, parsed.thinking)
    if (fault := _rules_fault(prefilled, schema)) is not None:
        return replace(item, problem=fault, is_rules_fault=True)
    # Custom tools coerce by their own types, in the tools room.
    checked = check(item.arguments, schema) if call.name in toolbox.builtin else item.arguments
    if isinstance(checked, ParseFailure):
        return replace(item, problem=checked.text)
    return replace(item, arguments=checked)


def _spoken(said: Any, wanted: ResponseFormat) -> tuple[str, str | None]:
    """A structured message as the text that is sent, and what is wrong with it."""
    if isinstance(said, str):
        return said, text_problem(said, wanted)
    return json.dumps(said, ensure_ascii=False), value_problem(said, wanted)


def _rules_fault(prefilled: Mapping[str, Prefilled], schema: ToolSchema) -> str | None:
    """Why an argument that a rule gives cannot be, in words that name both; None where each of them can."""
    optional = replace(schema, parameters={**schema.parameters, "required": []})
    for name, given in prefilled.items():
        checked = check({name: given.value}, optional)
        if isinstance(checked, ParseFailure):
            problem = checked.text.removeprefix("Error: ")
            return f"Error: the rule {given.rule} prefills the argument {name}, but {problem}. The tool was not run."
    return None


def without_loop_arguments(
    message: Message, planned: Sequence[PlannedCall], takes_heartbeat: Callable[[str], bool], *, heartbeat: bool
) -> Message:
    """The answer as it is stored: thinking is reasoning, and request_heartbeat says what was decided.

    Arguments that could not be used are kept in a form that a message can carry.
    """
    thoughts = tuple(ReasoningPart(item.thinking) for item in planned if item.thinking)
    calls = []
    for item in planned:
        if item.problem is not None:
            calls.append(structs.replace(item.call, arguments=storable(item.call.arguments)))
            continue
        decided = {"request_heartbeat": heartbeat} if takes_heartbeat(item.call.name) else {}
        calls.append(
            structs.replace(item.call, arguments=json.dumps({**item.arguments, **decided}, ensure_ascii=False))
        )
    return replace(message, content=(*thoughts, *message.content), tool_calls=tuple(calls))


def shown(message: Message, planned: Sequence[PlannedCall], config: RunConfig) -> list[MessageEvent]:
    """The events of an answer; what the speaking tool says is shown as the assistant's words, if it can be run.

    Where calls wait for a decision, all of them do, and nothing is said yet.
    """
    speech: dict[str, tuple[ContentPart, ...]] = {}
    gated = {item.call.id for item in planned if item.gated}
    for item in () if gated else planned:
        if config.assistant_messages and item.call.name == config.assistant_tool_name and item.problem is None:
            text = item.arguments.get(config.assistant_tool_argument)
            if isinstance(text, str):
                speech[item.call.id] = (TextPart(text),)
    stored = without_loop_arguments(message, planned, lambda _: False, heartbeat=False)
    if not gated:
        return shown_answer(stored, speech)
    free = tuple(call for call in stored.tool_calls if call.id not in gated)
    return [*shown_answer(replace(stored, tool_calls=free), {}), approvals.shown_request(message, planned)]


def returns_message(turn: Turn, step: str, returns: Sequence[ToolReturn], at: datetime) -> Message:
    """The one tool message that carries all returns of an answer, in the order of its calls."""
    return Message(
        id=derive_id("message", step, "returns"),
        role=Role.TOOL,
        created_at=at,
        tool_returns=tuple(returns),
        step_id=step,
        run_id=turn.run.id,
        conversation_id=turn.run.conversation_id,
        is_err=all(item.status is ToolStatus.ERROR for item in returns) or None,
    )


def heartbeat_message(turn: Turn, step: str, reason: str, at: datetime) -> Message:
    """The event that gives control back to the model."""
    return Message(
        id=derive_id("message", step, "heartbeat"),
        role=Role.USER,
        created_at=at,
        content=(TextPart(heartbeat(reason, at, turn.agent.time_zone)),),
        step_id=step,
        run_id=turn.run.id,
        conversation_id=turn.run.conversation_id,
    )


def ran_into_limit(answer: LlmAnswer) -> bool:
    """The model stopped at its output limit."""
    return answer.finish_reason is FinishReason.LENGTH
