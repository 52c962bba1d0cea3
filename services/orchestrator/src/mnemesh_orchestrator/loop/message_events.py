"""The events that show messages to clients: reasoning, words, calls, and returns, each part with its own otid."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final
from uuid import UUID

from mnemesh_types.messages import (
    ContentPart,
    Message,
    OmittedReasoningPart,
    ReasoningPart,
    RedactedReasoningPart,
    SummarizedReasoningPart,
    TextPart,
    ToolCall,
    ToolReturn,
)

from mnemesh_orchestrator.loop.step_messages import (
    approval_request_id,
    gated_calls,
    recorded_input,
    returns_id,
    stored_answer,
)
from mnemesh_orchestrator.model.approvals import PlannedCall
from mnemesh_orchestrator.model.events import MessageEvent, RunEvent
from mnemesh_orchestrator.model.inputs import SHOWN_ROLES
from mnemesh_orchestrator.model.run_config import RunConfig
from mnemesh_orchestrator.model.runs import Run

_PARTS: Final = 127
_SPEECH_INDEX: Final = 64
"""The part index of the first words that are spoken after their call was approved."""


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
