"""Agents whose conversations exceed their windows, and a model that also summarizes."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from mnemesh_orchestrator.compaction.summarizers import SUMMARY_NOTE
from mnemesh_orchestrator.llm.port import LlmAnswer, LlmRequest
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_testkit.fakes.fake_summarizer import extract_memories
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import Message, Role
from mnemesh_types.usage import Usage

from ..support.model import Item, call, say
from ..support.world import Process, World

WINDOW = 6_000
SMALL = ModelSettings(context_window=WINDOW)
LONG = "All work and no play makes a long message. " * 12
"""About 130 tokens."""

Respond = Callable[[LlmRequest], Item]


def is_summary_request(request: LlmRequest) -> bool:
    """Returns whether a request asks for a summary, by transcript or in the agent's own context."""
    return request.is_verbatim or "about to leave your context" in request.messages[-1].text


@dataclass
class Speaker:
    """Answers turns at once and writes summaries. `used` is the prompt size that it reports; its estimate is 100."""

    world: World
    summary: Respond = field(default=lambda request: say("They spoke of work."))
    turn: Respond | None = None
    used: int = 100

    def __post_init__(self) -> None:
        self.world.model.script = self

    def __call__(self, request: LlmRequest) -> Item:
        if is_summary_request(request):
            return self.summary(request)
        if self.turn is not None:
            return self.turn(request)
        needs_tool = request.tool_choice.kind != "auto"
        answer = call("send_message", message="Yes.") if needs_tool else say("Yes.")
        return self.reporting(answer)

    def reporting(self, answer: LlmAnswer) -> LlmAnswer:
        """Returns the answer with the currently reported usage."""
        return replace(answer, usage=Usage(self.used, 10, self.used + 10))

    @property
    def summaries(self) -> list[LlmRequest]:
        """The requests for summaries so far."""
        return [request for request in self.world.model.requests if is_summary_request(request)]


@pytest.fixture
def speaker(world: World) -> Speaker:
    """The world's model."""
    return Speaker(world)


async def small_agent(world: World, process: Process, kind: AgentType = AgentType.LETTA_V1, **draft: Any) -> Agent:
    """Creates an agent with a small window and no initial messages."""
    draft.setdefault("model_settings", SMALL)
    return await world.agent(process, kind, initial_messages=(), **draft)


async def talk(process: Process, agent: Agent, turns: int, text: str = LONG, **config: Any) -> None:
    """Runs this number of turns."""
    for number in range(turns):
        await process.send(agent, f"{number}. {text}", **config)


def summary_of(messages: Sequence[Message]) -> str:
    """Returns the text of the summary at the head of a window."""
    assert messages[1].role is Role.SUMMARY
    assert messages[1].text.startswith(SUMMARY_NOTE)
    return messages[1].text.removeprefix(SUMMARY_NOTE)


def roles(messages: Sequence[Message]) -> list[str]:
    """Returns the roles of messages in order."""
    return [message.role.value for message in messages]


def memories(request: LlmRequest) -> LlmAnswer:
    """Extracts from a transcript what users ask to remember ("Remember: the key is red."), as a model would."""
    return say(json.dumps(extract_memories(request.messages[-1].text)))
