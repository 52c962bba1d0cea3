"""Views of turns: messages, tool calls and returns, stop reasons, and the stored window."""

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mnemesh.agents.v1 import agents_pb2, runs_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent, Mnemesh, text_of


@dataclass(frozen=True, slots=True)
class Turn:
    """The events of one run, in the order in which they came."""

    events: Sequence[runs_pb2.RunEvent] = field(default_factory=list)

    @property
    def run_id(self) -> str:
        return self.events[0].run_id

    @property
    def accepted(self) -> runs_pb2.RunAccepted:
        """The first event of the stream."""
        return self.events[0].accepted

    @property
    def said(self) -> str:
        """The agent's messages to the user, one per line."""
        return "\n".join(
            text_of(event.message.assistant.content)
            for event in self.events
            if event.HasField("message") and event.message.HasField("assistant")
        )

    @property
    def streamed(self) -> str:
        """The agent's text, assembled from the deltas of the last attempt of each step."""
        pieces: dict[tuple[str, str], str] = {}
        for event in self.events:
            if event.HasField("delta") and event.delta.WhichOneof("delta") == "assistant_text":
                key = (event.step_id, event.delta.otid)
                pieces[key] = pieces.get(key, "")[: event.delta.offset] + event.delta.assistant_text
        return "\n".join(pieces.values())

    @property
    def calls(self) -> list[message_pb2.ToolCall]:
        """The tool calls, in order."""
        return [
            call
            for event in self.events
            if event.HasField("message") and event.message.HasField("tool_call")
            for call in event.message.tool_call.tool_calls
        ]

    @property
    def returns(self) -> list[message_pb2.ToolReturn]:
        """The tool returns, in order."""
        return [
            item
            for event in self.events
            if event.HasField("message") and event.message.HasField("tool_return")
            for item in event.message.tool_return.tool_returns
        ]

    @property
    def error(self) -> runs_pb2.RunError | None:
        """Why the run failed."""
        return next((event.error.error for event in self.events if event.HasField("error")), None)

    @property
    def stop(self) -> str:
        """The stop reason's name without its prefix."""
        stop = next(event.stop for event in self.events if event.HasField("stop"))
        return agents_pb2.StopReason.Name(stop.reason).removeprefix("STOP_REASON_")

    @property
    def status(self) -> str:
        """The run's final status, without its prefix."""
        stop = next(event.stop for event in self.events if event.HasField("stop"))
        return runs_pb2.RunStatus.Name(stop.status).removeprefix("RUN_STATUS_")

    @property
    def sequences(self) -> list[int]:
        """The numbers of the durable events."""
        return [event.sequence for event in self.events if event.HasField("sequence")]


async def turn(agent: Agent, content: Any, **options: Any) -> Turn:
    """Sends and collects the whole turn; options as of `Agent.send`."""
    return await collect(agent.send(content, **options))


async def collect(events: AsyncIterator[runs_pb2.RunEvent]) -> Turn:
    """All of a stream."""
    return Turn([event async for event in events])


async def window_of(client: Mnemesh, agent: Agent) -> list[message_pb2.Message]:
    """The window of the agent's default conversation as recall holds it, without the system message."""
    window = await client.messages.window(agent.proto.default_conversation_id)
    return list(window.messages)[1:]


async def stored(agent: Agent) -> list[message_pb2.Message]:
    """Everything in recall but the system message, in commit order."""
    return [message async for message in agent.messages() if message.role != message_pb2.ROLE_SYSTEM]


def assert_whole(messages: Iterable[message_pb2.Message]) -> None:
    """Checks that each call is followed by its one return, and that no id occurs twice."""
    waiting: list[str] = []
    seen: set[str] = set()
    message_ids: set[str] = set()
    for message in messages:
        assert message.id not in message_ids, f"{message.id} occurs twice"
        message_ids.add(message.id)
        if message.role == message_pb2.ROLE_TOOL:
            returned = [item.tool_call_id for item in message.tool_returns]
            assert returned == waiting, f"calls {waiting} have the returns {returned}"
            waiting = []
        else:
            assert not waiting, f"calls {waiting} have no return"
        for call in message.tool_calls:
            assert call.id not in seen, f"the call id {call.id} occurs twice"
            seen.add(call.id)
            waiting.append(call.id)
    assert not waiting, f"calls {waiting} have no return"


def texts(body: dict[str, Any]) -> list[str]:
    """The contents of the messages of a recorded OpenAI request, as texts."""
    return [_text(message.get("content")) for message in body["messages"]]


def tool_texts(body: dict[str, Any]) -> list[str]:
    """Returns the tool results in a recorded OpenAI request."""
    return [_text(message["content"]) for message in body["messages"] if message["role"] == "tool"]


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content if isinstance(content, str) else json.dumps(content)
