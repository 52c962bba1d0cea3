"""The events of a run as the answer that a client sees: each text once, whatever was repeated behind it."""

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from mnemesh.agents.v1 import agents_pb2, runs_pb2
from mnemesh.types.v1.message_pb2 import ContentPart, ToolCall, Usage

from mnemesh_gateway.errors import ApprovalRequired, RunFailed
from mnemesh_gateway.usecases.runs import waiting_calls

_BETWEEN: Final = "\n\n"
_FINISHES: Final = {
    agents_pb2.STOP_REASON_REQUIRES_APPROVAL: "tool_calls",
    agents_pb2.STOP_REASON_MAX_STEPS: "length",
    agents_pb2.STOP_REASON_MAX_TOKENS_EXCEEDED: "length",
    agents_pb2.STOP_REASON_CONTENT_FILTER: "content_filter",
}


@dataclass(frozen=True, slots=True)
class Part:
    """The next part of an answer: text, reasoning, calls that the client is to run, or its end."""

    text: str = ""
    reasoning: str = ""
    calls: Sequence[ToolCall] = ()
    finish: str | None = None
    """Why the answer ends, in OpenAI's words: stop, length, tool_calls or content_filter. The last part has it."""
    usage: Usage = field(default_factory=Usage)
    """The tokens of the run, as far as its provider reported them; the last part has them."""


Answer = AsyncGenerator[Part, None]


class Transcript:
    """The part of each text of a run that a client has seen.

    A text whose model call is repeated arrives again from its beginning. What equals the text that the client has seen
    is left out. If the new text differs, all of it follows after an empty line, because nothing can be taken back.
    """

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}
        self._again: dict[str, str] = {}
        self._newest: dict[bool, str] = {}
        self._complete: set[str] = set()

    def add_piece(self, part: str, offset: int, text: str, *, thinks: bool) -> str:
        """Returns what to send for a part of a text; `offset` is the index of its first character in the text."""
        part = _key(part, thinks=thinks)
        seen, again = self._seen.get(part, ""), self._again.get(part)
        if again is None and offset >= len(seen):
            return self._add(part, text, thinks=thinks)
        again = "" if offset == 0 else again or ""
        self._again[part] = again = again[:offset] + text
        if seen.startswith(again):
            return ""
        del self._again[part]
        return self._rest(part, again, thinks=thinks)

    def add_whole(self, part: str, text: str, *, thinks: bool) -> str:
        """Returns what to send for a complete text."""
        part = _key(part, thinks=thinks)
        self._again.pop(part, None)
        if part not in self._seen:
            streamed = self._newest.get(thinks)
            if streamed is not None and streamed not in self._complete and self._seen[streamed] == text:
                self._complete.add(streamed)
                return ""
        self._complete.add(part)
        return self._rest(part, text, thinks=thinks)

    def _rest(self, part: str, text: str, *, thinks: bool) -> str:
        seen = self._seen.get(part, "")
        if text.startswith(seen):
            return self._add(part, text[len(seen) :], thinks=thinks)
        self._seen[part] = text
        return _BETWEEN + text

    def _add(self, part: str, text: str, *, thinks: bool) -> str:
        if not text:
            return ""
        begins = part not in self._seen and thinks in self._newest
        self._seen[part] = self._seen.get(part, "") + text
        self._newest[thinks] = part
        return _BETWEEN + text if begins else text


def _key(part: str, *, thinks: bool) -> str:
    # Words and thoughts that came in another order than that of the complete message exchange their ids.
    return f"{part}/{'thoughts' if thinks else 'words'}"


async def begin_answer(run: AsyncIterator[runs_pb2.RunEvent], client_tools: Collection[str]) -> tuple[str, Answer]:
    """Waits until a run is stored, and returns its id and its answer: the turn takes place whatever happens then."""
    accepted = await anext(run)
    return accepted.run_id, answer_of(run, client_tools)


async def answer_of(run: AsyncIterator[runs_pb2.RunEvent], client_tools: Collection[str]) -> Answer:
    """Yields the answer of a run whose first event was read.

    Raises:
        RunFailed: the run failed or was cancelled.
        ApprovalRequired: it waits for a person to approve calls of the agent's own tools.
    """
    transcript, usage, finish = Transcript(), Usage(), "stop"
    waiting: Sequence[ToolCall] = ()
    async for event in run:
        match event.WhichOneof("event"):
            case "delta" | "message":
                if (part := _text_of(event, transcript)) is not None:
                    yield part
                elif calls := waiting_calls(event):
                    waiting = calls
                    if {call.name for call in calls} <= set(client_tools):
                        yield Part(calls=calls)
            case "error":
                error = event.error.error
                raise RunFailed(error.reason, error.message, dict(error.metadata))
            case "stop":
                if event.stop.status == runs_pb2.RUN_STATUS_CANCELLED:
                    raise RunFailed("CANCELLED", "The run was cancelled. Send the request again to repeat it.", {})
                finish = _FINISHES.get(event.stop.reason, "stop")
            case "usage":
                usage = event.usage.usage
    # Only now, because a message that arrives before the run has stopped would wait for the approval.
    require_client_tools(waiting, client_tools)
    yield Part(finish=finish, usage=usage)


def _text_of(event: runs_pb2.RunEvent, transcript: Transcript) -> Part | None:
    """Returns the text of an event that the client has not seen; None if there is none."""
    delta, message = event.delta, event.message
    text, thinks = "", False
    match delta.WhichOneof("delta") or (None if event.agent_id else message.WhichOneof("message")):
        case "assistant_text":
            text = transcript.add_piece(delta.otid, delta.offset, delta.assistant_text, thinks=False)
        case "reasoning_text":
            thinks = True
            text = transcript.add_piece(delta.otid, delta.offset, delta.reasoning_text, thinks=True)
        case "assistant":
            text = transcript.add_whole(message.otid, _joined(message.assistant.content), thinks=False)
        case "reasoning":
            thinks = True
            text = transcript.add_whole(message.otid, message.reasoning.text, thinks=True)
    if not text:
        return None
    return Part(reasoning=text) if thinks else Part(text)


def _joined(content: Sequence[ContentPart]) -> str:
    return "".join(part.text.text for part in content if part.HasField("text"))


def require_client_tools(calls: Sequence[ToolCall], client_tools: Collection[str]) -> None:
    """Raises ApprovalRequired if one of the calls is of a tool of the agent."""
    own = [call.name for call in calls if call.name not in client_tools]
    if own:
        raise ApprovalRequired(
            f"The agent waits for the approval of its own tools: {', '.join(own)}. Decide with `mnemesh chat` or "
            "AnswerApproval, then send the request again.",
            code="approval_required",
        )
