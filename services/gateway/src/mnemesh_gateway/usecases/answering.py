"""Runs of agents, and the answers that they stream."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from mnemesh.agents.v1 import agents_pb2, runs_pb2
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh.agents.v1.runs_service_pb2_grpc import RunServiceStub
from mnemesh.types.v1.message_pb2 import ApprovalDecision, ContentPart, ToolCall, Usage
from mnemesh_client import runs
from mnemesh_kit.errors import FailedPrecondition
from mnemesh_kit.ids import new_id

from mnemesh_gateway.errors import ApprovalRequired, RunFailed

READ: Final = 5.0
WRITE: Final = 10.0
ACCEPTANCE: Final = 5.0
"""The time in seconds after which a message that the orchestrator has not accepted is not sent again."""
PATIENCE: Final = 60.0
"""The time in seconds for which a broken stream is retried without an event."""
KEEPALIVE_SECONDS: Final = 15
_EVENTS: Final = (
    runs_pb2.EVENT_KIND_ASSISTANT_MESSAGE,
    runs_pb2.EVENT_KIND_REASONING_MESSAGE,
    runs_pb2.EVENT_KIND_APPROVAL_REQUEST_MESSAGE,
)
_FAILED: Final = (runs_pb2.RUN_STATUS_FAILED, runs_pb2.RUN_STATUS_CANCELLED)

Events = AsyncGenerator[runs_pb2.RunEvent, None]


def config_of(request: runs_pb2.RunConfig, metadata: Mapping[str, Any]) -> runs_pb2.RunConfig:
    """Returns the configuration of a run: that of a request, with what the gateway reads of its events."""
    config = runs_pb2.RunConfig(include_events=_EVENTS, keepalive_seconds=KEEPALIVE_SECONDS)
    config.MergeFrom(request)
    if metadata:
        config.metadata = json.dumps(metadata)
    return config


def has_ended(run: runs_pb2.Run) -> bool:
    return run.status == runs_pb2.RUN_STATUS_COMPLETED or run.status in _FAILED


def has_failed(run: runs_pb2.Run) -> bool:
    """Returns whether a run failed or was cancelled."""
    return run.status in _FAILED


def metadata_of(run: runs_pb2.Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run.config.metadata) if run.config.HasField("metadata") else {}
    return found


def is_replay(event: runs_pb2.RunEvent) -> bool:
    """Returns whether an event says that an earlier request started the run."""
    return event.accepted.replayed


def waiting_calls(event: runs_pb2.RunEvent) -> Sequence[ToolCall]:
    """Returns the calls about which someone decides, if an event asks for it. Those of other agents are left out."""
    return () if event.agent_id else event.message.approval_request.tool_calls


class RunsClient:
    """Runs of the current principal's organization. Streams survive broken connections and takeovers."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = RunServiceStub(channel)

    def send(
        self,
        agent_id: str,
        conversation_id: str | None,
        messages: Sequence[runs_pb2.InputMessage],
        config: runs_pb2.RunConfig,
    ) -> Events:
        """Starts a run, or finds the one with these messages, and yields its events. The first is `accepted`.

        Raises:
            OtidReused: some of the messages were sent before. `run_id` of the metadata is their run.
            PendingApproval: the conversation waits for results of tools.
        """
        request = rpc.SendMessageRequest(
            request_id=new_id("gateway"),
            agent_id=agent_id,
            conversation_id=conversation_id,
            messages=messages,
            config=config,
        )
        # Without tokens, nothing is shown before the end, and one response costs less than a stream.
        send = runs.send if config.stream_tokens else runs.send_and_wait
        return send(self._stub, request, PATIENCE, ACCEPTANCE)

    def answer(
        self,
        agent_id: str,
        conversation_id: str,
        results: Sequence[ApprovalDecision],
        messages: Sequence[runs_pb2.InputMessage],
        config: runs_pb2.RunConfig,
    ) -> Events:
        """Continues a run with the results of the client's tools, and yields the events of the new run.

        Raises:
            NoPendingApproval: no call waits for these results.
            ApprovalMismatch: the results are not those of all calls that wait.
        """
        request = rpc.AnswerApprovalRequest(
            request_id=new_id("gateway"),
            agent_id=agent_id,
            conversation_id=conversation_id,
            decisions=results,
            messages=messages,
            config=config,
        )
        return runs.send(self._stub, request, PATIENCE, ACCEPTANCE)

    def follow(self, run_id: str) -> Events:
        """Yields the events of a run. The first is `accepted`."""
        return runs.attach(self._stub, run_id, 0, PATIENCE)

    async def newest(self, agent_id: str, conversation_id: str) -> runs_pb2.Run | None:
        filter_ = rpc.RunFilter(agent_ids=[agent_id], conversation_id=conversation_id)
        async with aclosing(self.recent(filter_, 1)) as found:
            return await anext(found, None)

    async def recent(self, filter_: rpc.RunFilter, count: int) -> AsyncGenerator[runs_pb2.Run, None]:
        """Yields runs, newest first. Each is read alone: its images may be large."""
        request = rpc.ListRunsRequest(page_size=1, filter=filter_)
        for _ in range(count):
            response = await self._stub.ListRuns(request, timeout=READ)
            for run in response.runs:
                yield run
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token

    async def get(self, run_id: str) -> runs_pb2.Run:
        """Returns a run. Raises NotFound."""
        return (await self._stub.GetRun(rpc.GetRunRequest(run_id=run_id), timeout=READ)).run

    async def retry(self, run_id: str) -> str:
        """Starts a failed run again. Returns the id of the new run, or of a retry that exists."""
        try:
            response = await self._stub.RetryRun(rpc.RetryRunRequest(run_id=run_id), timeout=WRITE)
        except FailedPrecondition as error:
            # A retry runs or has completed. Its id is in the metadata.
            existing = error.metadata.get("resource_id")
            if existing is None:
                raise
            return existing
        return str(response.run.id)

    async def cancel(self, conversation_id: str) -> None:
        """Cancels the runs of a conversation, and withdraws the calls that it waits for."""
        await self._stub.CancelRuns(rpc.CancelRunsRequest(conversation_id=conversation_id), timeout=WRITE)


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
