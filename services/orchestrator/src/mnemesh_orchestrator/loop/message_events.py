"""Stored messages as clients see them: reasoning, words and calls, each with an otid of its own."""

from uuid import UUID

from mnemesh_types.messages import (
    ContentPart,
    Message,
    OmittedReasoningPart,
    ReasoningPart,
    RedactedReasoningPart,
    SummarizedReasoningPart,
    ToolCall,
)

from mnemesh_orchestrator.model.events import MessageEvent

_PARTS = 127


def otid(message_id: str, index: int) -> str:
    """The client's id of a part: the message's UUID with its low 7 bits replaced by the part's index."""
    value = UUID(message_id.partition("-")[2]).int
    return str(UUID(int=(value & ~_PARTS) | min(index, _PARTS)))


def reasoning_and_words(message: Message) -> list[tuple[str, tuple[ContentPart, ...]]]:
    """The content in order as (kind, parts): adjacent words are one, each reasoning part is its own."""
    shown: list[tuple[str, tuple[ContentPart, ...]]] = []
    for part in message.content:
        match part:
            case SummarizedReasoningPart(summaries=()):
                shown.append(("hidden_reasoning", (part,)))
            case ReasoningPart() | SummarizedReasoningPart():
                shown.append(("reasoning", (part,)))
            case RedactedReasoningPart() | OmittedReasoningPart():
                shown.append(("hidden_reasoning", (part,)))
            case _ if shown and shown[-1][0] == "assistant":
                shown[-1] = ("assistant", (*shown[-1][1], part))
            case _:
                shown.append(("assistant", (part,)))
    return shown


def shown_summary(message: Message) -> MessageEvent:
    """A summary at the head of a window, in the model's own wording."""
    return MessageEvent("summary", message.id, otid(message.id, 0), message.created_at, message.content)


def shown_answer(message: Message, speech: dict[str, tuple[ContentPart, ...]]) -> list[MessageEvent]:
    """The events of an assistant message.

    Args:
        message: as it was answered.
        speech: by call id, the words of calls that are shown as the assistant's rather than as calls.
    """
    pieces: list[MessageEvent] = []

    def add(kind: str, content: tuple[ContentPart, ...] = (), calls: tuple[ToolCall, ...] = ()) -> None:
        pieces.append(
            MessageEvent(
                kind=kind,
                message_id=message.id,
                otid=otid(message.id, len(pieces)),
                message_time=message.created_at,
                content=content,
                tool_calls=calls,
                name=message.name,
            )
        )

    for kind, parts in reasoning_and_words(message):
        add(kind, parts)
    silent: list[ToolCall] = []
    for call in message.tool_calls:
        if call.id in speech:
            if silent:
                add("tool_call", calls=tuple(silent))
                silent = []
            add("assistant", speech[call.id])
        else:
            silent.append(call)
    if silent:
        add("tool_call", calls=tuple(silent))
    return pieces
