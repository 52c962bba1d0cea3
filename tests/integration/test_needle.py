"""A fact from turn 3 is found in turn 3,000, on the whole mesh: with --full in two modes, with --sweep in every one.

Turn 3 contains two facts. The summary model copies one of them from each summary into the next and omits the other,
which only a search of the messages finds. Most turns are loaded in bulk, as an import does; the turns between them are
real, with a window that is too full. MNEMESH_NEEDLE_BULK=0 makes all of them real.
"""

import json
import os
from typing import Any

import pytest
from mnemesh.agents.v1 import agents_pb2
from mnemesh.recall.v1 import messages_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent, text_of
from mnemesh_kit.ids import new_id
from mnemesh_testkit.fakes.fake_summarizer import extract_memories
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Call, Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import assert_whole, texts, turn, window_of
from mnemesh_testkit.plugin import Sample
from mnemesh_testkit.timeouts import scaled

TURNS = 3_000
BULK = int(os.environ.get("MNEMESH_NEEDLE_BULK", "119"))
"""Turns that come in bulk before each real one."""
WINDOW = 12_000
CARRIED = "the wine cellar opens with 4711."
DROPPED = "The boathouse key hangs behind the blue lantern."
QUESTIONS = (
    ("How does the cellar open?", CARRIED, "how the wine cellar opens"),
    ("Where is the boathouse key?", "behind the blue lantern", "boathouse key"),
)
CITIES = ("Lisbon", "Bergen", "Kyoto", "Quito", "Turin", "Perth", "Accra")
MODES = [mode for mode in agents_pb2.CompactionMode.values() if mode]


def answer(body: dict[str, Any]) -> Any:
    """One model for all: it summarises, draws memories, answers what it sees, and looks up what it does not."""
    contents = texts(body)
    everything = "\n".join(contents)
    if "keep the long-term memory" in contents[0]:
        return json.dumps(extract_memories(contents[-1]))
    if (
        "leaves it" in contents[0]
        or "leaves its context" in contents[0]
        or "about to leave your context" in contents[-1]
    ):
        return f"They spoke of the weather, and {CARRIED}" if CARRIED in everything else "They spoke of the weather."
    events = [text for message, text in zip(body["messages"], contents, strict=True) if message["role"] == "user"][-1]
    has_searched = body["messages"][-1]["role"] == "tool"
    for question, known, query in QUESTIONS:
        if question in events:
            if known in everything:
                return known
            return (
                "I do not know." if has_searched else Reply(tool_calls=[Call("conversation_search", {"query": query})])
            )
    return "I see."


def a_turn(number: int) -> list[message_pb2.Message]:
    """Returns the messages of a turn without facts."""
    contents = [
        (message_pb2.ROLE_USER, f"{number}. In {CITIES[number % len(CITIES)]} it rained on day {number}."),
        (message_pb2.ROLE_ASSISTANT, "I see."),
    ]
    return [
        message_pb2.Message(
            id=new_id("message"), role=role, content=[message_pb2.ContentPart(text=message_pb2.TextPart(text=text))]
        )
        for role, text in contents
    ]


async def converse(mesh: Mesh, agent: Agent) -> None:
    """Three thousand turns; the third contains the two facts."""
    waiting: list[message_pb2.Message] = []
    for number in range(TURNS):
        if number >= 5 and number % (BULK + 1) != BULK:
            waiting += a_turn(number)
            continue
        if waiting:
            request = messages_service_pb2.AppendMessagesRequest(
                request_id=f"{agent.id}/{number}",
                agent_id=agent.id,
                conversation_id=agent.proto.default_conversation_id,
                messages=waiting,
            )
            await mesh.stubs.messages.AppendMessages(request)
            waiting = []
        result = await turn(
            agent, f"Remember: {CARRIED} {DROPPED}" if number == 3 else text_of(a_turn(number)[0].content)
        )
        assert (result.status, result.said) == ("COMPLETED", "I see."), number


@pytest.mark.full
@pytest.mark.timeout(scaled(300) if BULK >= 59 else 7_200)
async def test_fact_of_turn_3_is_found_in_turn_3000(mesh: Mesh, fake_openai: FakeOpenAI, sample: Sample) -> None:
    assert len(MODES) == 5
    fake_openai.script = answer
    settings = agents_pb2.ModelSettings(context_window=WINDOW, max_output_tokens=500)
    agents = {}
    for mode in sample(MODES, 3, 3):
        agent = await mesh.client.agents.create(model="openai/fake-model", settings=settings, blocks={"human": ""})
        agents[mode] = await agent.update(compaction_settings=agents_pb2.CompactionSettings(mode=mode))
    for mode, agent in agents.items():
        await converse(mesh, agent)
        name = agents_pb2.CompactionMode.Name(mode)
        window = await window_of(mesh.client, agent)
        assert_whole(window)
        assert len(window) < 500, name
        assert window[0].role == message_pb2.ROLE_SUMMARY, name
        sight = "\n".join(text_of(message.content) for message in window)
        assert CARRIED in text_of(window[0].content), f"{name}: folded through all summaries"
        assert DROPPED not in sight, f"{name}: forgotten by them"
        result = await turn(agent, "How does the cellar open?")
        assert (result.said, result.calls) == (CARRIED, []), name
        result = await turn(agent, "Where is the boathouse key?")
        assert result.said == "behind the blue lantern", name
        assert [call.name for call in result.calls] == ["conversation_search"], name
    for request in fake_openai.requests:
        contents = texts(request.body)
        # The estimate may be corrected by a tenth: the fake counts few tokens.
        assert sum(len(text.encode()) for text in contents) / 4 + 4 * len(contents) < WINDOW / 0.9
