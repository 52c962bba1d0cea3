"""The messages that a turn adds to the window, and their ids and events. Pure: a replay returns the same."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final
from uuid import UUID

from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import (
    ContentPart,
    Message,
    OmittedReasoningPart,
    ReasoningPart,
    RedactedReasoningPart,
    Role,
    SummarizedReasoningPart,
    TextPart,
    ToolCall,
    ToolReturn,
)
from msgspec import structs

from mnemesh_orchestrator.builtin.arguments import storable_arguments
from mnemesh_orchestrator.llm.port import LlmAnswer
from mnemesh_orchestrator.model.approvals import PlannedCall
from mnemesh_orchestrator.model.context_window import ContextWindow
from mnemesh_orchestrator.model.events import MessageEvent, RunEvent
from mnemesh_orchestrator.model.inputs import SHOWN_ROLES
from mnemesh_orchestrator.model.run_config import RunConfig
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.prompt.packaging import heartbeat

_PARTS: Final = 127
_SPEECH_INDEX: Final = 64
"""The part index of the first words that are spoken after their call was approved."""


def step_id(run_id: str, number: int) -> str:
    """Returns the id of a run's step. It is the same after a restart."""
    return derive_id("step", run_id, str(number))


def call_id(step: str, ordinal: int) -> str:
    """Returns mnemesh's id of a call. Its 29 characters fit every provider; the providers' own ids can repeat."""
    return "call_" + derive_id("call", step, str(ordinal)).removeprefix("call-").replace("-", "")[:24]


def answer_id(step: str) -> str:
    """Returns the id of a step's assistant message, which is known before the first token."""
    return derive_id("message", step, "answer")


def returns_id(step: str) -> str:
    """Returns the id of a step's tool message."""
    return derive_id("message", step, "returns")


def approval_request_id(step: str) -> str:
    """Returns the id of the message that requests approval for calls of a step."""
    return derive_id("message", step, "approval")


def input_id(run_id: str, ordinal: int) -> str:
    """Returns the id of a message of a run's input."""
    return derive_id("message", run_id, "input", str(ordinal))


def input_messages(run: Run, window: ContextWindow) -> tuple[Message, ...]:
    """Returns the part of a run's input that is to enter the window: all of it, or nothing if the window holds it.

    The window holds it if the run was resumed after a crash, or if it retries a run that committed it.
    """
    messages = recorded_input(run)
    held = {message.id for message in messages}
    return () if any(message.id in held for message in window.messages) else messages


def recorded_input(run: Run) -> tuple[Message, ...]:
    """Returns a run's input as messages, dated when it was sent.

    Every attempt at an input returns the same messages: their ids, run and step are those of the first attempt, so that
    recall stores each of them once.
    """
    return tuple(
        Message(
            id=input_id(run.first_run_id, ordinal),
            role=message.role,
            created_at=run.created_at,
            content=message.content,
            name=message.name,
            otid=message.otid,
            sender_id=message.sender_id,
            group_id=message.group_id or run.group_id,
            step_id=step_id(run.first_run_id, 1),
            run_id=run.first_run_id,
            conversation_id=run.conversation_id,
        )
        for ordinal, message in enumerate(run.input)
    )


def answer_message(
    run: Run, step: str, model: str, answer: LlmAnswer, now: datetime, *, text_is_reasoning: bool
) -> Message:
    """Returns the assistant message of an answer, with mnemesh's ids of its calls.

    Args:
        run: the run that received the answer.
        step: the step's id.
        model: the handle of the model that answered.
        answer: the answer.
        now: the time of the message.
        text_is_reasoning: text next to a call is reasoning, because the agent speaks by a tool.
    """
    calls = tuple(
        ToolCall(call_id(step, ordinal), call.name, call.arguments, call.provider_id)
        for ordinal, call in enumerate(answer.tool_calls)
    )
    content: Sequence[ContentPart] = answer.content
    if calls and text_is_reasoning:
        content = [ReasoningPart(part.text) if isinstance(part, TextPart) else part for part in content]
    return Message(
        id=answer_id(step),
        role=Role.ASSISTANT,
        created_at=now,
        content=tuple(part for part in content if not (isinstance(part, TextPart) and not part.text)),
        tool_calls=calls,
        carried=answer.carried,
        model=model,
        step_id=step,
        run_id=run.id,
        conversation_id=run.conversation_id,
        group_id=run.group_id,
    )


def stored_answer(
    message: Message, planned: Sequence[PlannedCall], takes_heartbeat: Callable[[str], bool], *, heartbeat: bool
) -> Message:
    """Returns the answer as it is stored: without the arguments that the loop added to the tools' schemas.

    The "thinking" argument becomes reasoning, and request_heartbeat says what the loop decided. Arguments that are no
    JSON object are stored in a form that a message can hold.

    Args:
        message: the assistant message.
        planned: its calls.
        takes_heartbeat: returns whether a tool has the request_heartbeat argument.
        heartbeat: whether the turn continues after the step.
    """
    thoughts = tuple(ReasoningPart(item.thinking) for item in planned if item.thinking)
    calls = []
    for item in planned:
        if item.problem is not None:
            calls.append(structs.replace(item.call, arguments=storable_arguments(item.call.arguments)))
            continue
        decided = {"request_heartbeat": heartbeat} if takes_heartbeat(item.call.name) else {}
        calls.append(
            structs.replace(item.call, arguments=json.dumps({**item.arguments, **decided}, ensure_ascii=False))
        )
    return replace(message, content=(*thoughts, *message.content), tool_calls=tuple(calls))


def returns_message(run: Run, step: str, returns: Sequence[ToolReturn], at: datetime) -> Message:
    """Returns the one tool message of a step, with all returns in the order of their calls."""
    return Message(
        id=returns_id(step),
        role=Role.TOOL,
        created_at=at,
        tool_returns=tuple(returns),
        step_id=step,
        run_id=run.id,
        conversation_id=run.conversation_id,
        group_id=run.group_id,
    )


def heartbeat_message(run: Run, step: str, reason: str, at: datetime, time_zone: str) -> Message:
    """Returns the event that returns control to the model."""
    return Message(
        id=derive_id("message", step, "heartbeat"),
        role=Role.USER,
        created_at=at,
        content=(TextPart(heartbeat(reason, at, time_zone)),),
        is_event=True,
        step_id=step,
        run_id=run.id,
        conversation_id=run.conversation_id,
        group_id=run.group_id,
    )


def gated_calls(planned: Sequence[PlannedCall]) -> tuple[ToolCall, ...]:
    """Returns the calls that wait for a decision, with the arguments that they will run with."""
    return tuple(
        structs.replace(item.call, arguments=json.dumps(dict(item.arguments), ensure_ascii=False))
        for item in planned
        if item.gated
    )


def otid(message_id: str, index: int) -> str:
    """Returns the client's id of a part: the message's UUID with its low 7 bits replaced by the part's index."""
    value = UUID(message_id.partition("-")[2]).int
    return str(UUID(int=(value & ~_PARTS) | min(index, _PARTS)))


def reasoning_and_words(message: Message) -> list[tuple[str, tuple[ContentPart, ...]]]:
    """Returns the content in order as (kind, parts). Adjacent words are one item, each reasoning part is its own."""
    items: list[tuple[str, tuple[ContentPart, ...]]] = []
    for part in message.content:
        match part:
            case SummarizedReasoningPart(summaries=()):
                items.append(("hidden_reasoning", (part,)))
            case ReasoningPart() | SummarizedReasoningPart():
                items.append(("reasoning", (part,)))
            case RedactedReasoningPart() | OmittedReasoningPart():
                items.append(("hidden_reasoning", (part,)))
            case _ if items and items[-1][0] == "assistant":
                items[-1] = ("assistant", (*items[-1][1], part))
            case _:
                items.append(("assistant", (part,)))
    return items


def input_events(run: Run) -> list[RunEvent]:
    """Returns the first events of a run, which show its input. They are not stored, because the run has the input."""
    shown = [message for message in recorded_input(run) if message.role in SHOWN_ROLES]
    return [
        RunEvent(run.id, run.created_at, recorded_input_event(message), number)
        for number, message in enumerate(shown[: run.shown_inputs], 1)
    ]


def recorded_input_event(message: Message) -> MessageEvent:
    """Returns the event that shows a message of a run's input."""
    return MessageEvent(
        kind=message.role.value,
        message_id=message.id,
        otid=message.otid or otid(message.id, 0),
        message_time=message.created_at,
        content=message.content,
        name=message.name,
        sender_id=message.sender_id,
    )


def summary_event(message: Message) -> MessageEvent:
    """Returns the event of a summary, in the words that the model reads."""
    return MessageEvent("summary", message.id, otid(message.id, 0), message.created_at, message.content)


def message_events(message: Message, speech: dict[str, tuple[ContentPart, ...]]) -> list[MessageEvent]:
    """Returns the events of an assistant message.

    Args:
        message: the message.
        speech: by call id, the words of calls that are shown as the assistant's words instead of as calls.
    """
    events: list[MessageEvent] = []

    def add(kind: str, content: tuple[ContentPart, ...] = (), calls: tuple[ToolCall, ...] = ()) -> None:
        events.append(
            MessageEvent(
                kind=kind,
                message_id=message.id,
                otid=otid(message.id, len(events)),
                message_time=message.created_at,
                content=content,
                tool_calls=calls,
                name=message.name,
            )
        )

    for kind, parts in reasoning_and_words(message):
        add(kind, parts)
    calls: list[ToolCall] = []
    for call in message.tool_calls:
        if call.id in speech:
            if calls:
                add("tool_call", calls=tuple(calls))
                calls = []
            add("assistant", speech[call.id])
        else:
            calls.append(call)
    if calls:
        add("tool_call", calls=tuple(calls))
    return events


def answer_events(message: Message, planned: Sequence[PlannedCall], config: RunConfig) -> list[MessageEvent]:
    """Returns the events of an answer.

    The words of the speaking tool are shown as the assistant's words if the call can run. If any call waits for a
    decision, the events show no words of the speaking tool, and a request for approval follows.
    """
    if not planned:
        return message_events(message, {})
    gated = {item.call.id for item in planned if item.gated}
    stored = stored_answer(message, planned, lambda _: False, heartbeat=False)
    if gated:
        free = tuple(call for call in stored.tool_calls if call.id not in gated)
        events = message_events(replace(stored, tool_calls=free), {})
        return [*events, approval_request_event(message, planned)]
    speech: dict[str, tuple[ContentPart, ...]] = {}
    for item in planned:
        if config.assistant_messages and item.call.name == config.assistant_tool_name and item.problem is None:
            text = item.arguments.get(config.assistant_tool_argument)
            if isinstance(text, str):
                speech[item.call.id] = (TextPart(text),)
    return message_events(stored, speech)


def return_event(step_id: str, ordinal: int, returned: ToolReturn, at: datetime) -> MessageEvent:
    """Returns the event of a tool return. It is a part of the step's one tool message."""
    message_id = returns_id(step_id)
    return MessageEvent(
        kind="tool_return",
        message_id=message_id,
        otid=otid(message_id, ordinal),
        message_time=at,
        tool_returns=(returned,),
    )


def approval_request_event(message: Message, planned: Sequence[PlannedCall]) -> MessageEvent:
    """Returns the event that asks for approval of the gated calls of an answer."""
    id_ = approval_request_id(message.step_id or "")
    return MessageEvent("approval_request", id_, otid(id_, 0), message.created_at, tool_calls=gated_calls(planned))


def approval_response_event(message: Message) -> MessageEvent:
    """Returns the event of a message that answers a request for approval."""
    return MessageEvent(
        "approval_response",
        message.id,
        otid(message.id, 0),
        message.created_at,
        approval_request_id=message.approval_request_id,
        decisions=message.approval_decisions,
    )


def approved_speech_event(message_id: str, item: PlannedCall, text: str, at: datetime) -> MessageEvent:
    """Returns the event of words whose speaking call had waited for approval."""
    part = otid(message_id, _SPEECH_INDEX + item.ordinal)
    return MessageEvent("assistant", message_id, part, at, content=(TextPart(text),))
