"""The events of a run as the answer that a client sees: each text once, whatever was repeated behind it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from dataclasses import replace
from typing import Final

from mnemesh_gateway.errors import ApprovalRequired, RunFailed
from mnemesh_gateway.model.runs import (
    Accepted,
    AnswerEvent,
    Begun,
    Called,
    Failed,
    Finish,
    Finished,
    Idle,
    KeptAlive,
    Piece,
    Reasoned,
    RunEvent,
    Said,
    Stopped,
    ToolCall,
    Usage,
    Used,
    Waiting,
    Whole,
)

_BETWEEN: Final = "\n\n"
_FINISHES: Final = {
    "requires_approval": Finish.TOOL_CALLS,
    "max_steps": Finish.LENGTH,
    "max_tokens_exceeded": Finish.LENGTH,
    "content_filter": Finish.CONTENT_FILTER,
}


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

    def add(self, event: Piece | Whole) -> str:
        """Returns what to send for a part of a text, or for the complete text."""
        # Words and thoughts that came in another order than that of the complete message exchange their ids.
        event = replace(event, part=f"{event.part}/{'thoughts' if event.is_reasoning else 'words'}")
        return self._piece(event) if isinstance(event, Piece) else self._whole(event)

    def _piece(self, piece: Piece) -> str:
        seen = self._seen.get(piece.part, "")
        again = self._again.get(piece.part)
        if again is None and piece.offset >= len(seen):
            return self._add(piece.part, piece.text, piece.is_reasoning)
        again = "" if piece.offset == 0 else again or ""
        self._again[piece.part] = again = again[: piece.offset] + piece.text
        if seen.startswith(again):
            return ""
        del self._again[piece.part]
        return self._rest(piece.part, again, piece.is_reasoning)

    def _whole(self, whole: Whole) -> str:
        self._again.pop(whole.part, None)
        if whole.part not in self._seen:
            streamed = self._newest.get(whole.is_reasoning)
            if streamed is not None and streamed not in self._complete and self._seen[streamed] == whole.text:
                self._complete.add(streamed)
                return ""
        self._complete.add(whole.part)
        return self._rest(whole.part, whole.text, whole.is_reasoning)

    def _rest(self, part: str, text: str, is_reasoning: bool) -> str:
        seen = self._seen.get(part, "")
        if text.startswith(seen):
            return self._add(part, text[len(seen) :], is_reasoning)
        self._seen[part] = text
        return _BETWEEN + text

    def _add(self, part: str, text: str, is_reasoning: bool) -> str:
        if not text:
            return ""
        begins = part not in self._seen and is_reasoning in self._newest
        self._seen[part] = self._seen.get(part, "") + text
        self._newest[is_reasoning] = part
        return _BETWEEN + text if begins else text


async def answer_events(
    run: AsyncIterator[RunEvent], client_tools: Collection[str]
) -> AsyncGenerator[AnswerEvent, None]:
    """Yields the answer of a run, from Begun to Finished.

    Raises:
        RunFailed: The run failed or was cancelled.
        ApprovalRequired: It waits for a person to approve calls of the agent's own tools.
    """
    transcript, usage, finish = Transcript(), Usage(), Finish.STOP
    waiting: tuple[ToolCall, ...] = ()
    async for event in run:
        match event:
            case Accepted(run_id, replayed):
                yield Begun(run_id, replayed)
            case Piece() | Whole():
                if text := transcript.add(event):
                    yield Reasoned(text) if event.is_reasoning else Said(text)
            case Waiting(calls):
                waiting = calls
                if {call.name for call in calls} <= set(client_tools):
                    yield Called(calls)
            case Failed(reason, message, metadata):
                raise RunFailed(reason, message, dict(metadata))
            case Stopped(reason, is_cancelled):
                if is_cancelled:
                    raise RunFailed("CANCELLED", "The run was cancelled. Send the request again to repeat it.", {})
                finish = _FINISHES.get(reason, Finish.STOP)
            case Used(used):
                usage = used
            case KeptAlive():
                yield Idle()
    # Only now, because a message that arrives before the run has stopped would wait for the approval.
    require_client_tools(waiting, client_tools)
    yield Finished(finish, usage)


def require_client_tools(calls: Sequence[ToolCall], client_tools: Collection[str]) -> None:
    """Raises ApprovalRequired if one of the calls is of a tool of the agent."""
    own = [call.name for call in calls if call.name not in client_tools]
    if own:
        raise ApprovalRequired(
            f"The agent waits for the approval of its own tools: {', '.join(own)}. Decide with `mnemesh chat` or "
            "AnswerApproval, then send the request again.",
            code="approval_required",
        )
