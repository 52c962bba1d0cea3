"""The two voice agent types: one that answers quickly in a short window, one that maintains the memory."""

import json

import pytest
from mnemesh_orchestrator.builtin.search import transcript
from mnemesh_orchestrator.llm.port import LlmRequest, ToolChoiceKind
from mnemesh_orchestrator.model.agents import AgentType
from mnemesh_orchestrator.model.events import StopEvent
from mnemesh_orchestrator.model.runs import StopReason
from mnemesh_types.messages import Role, ToolStatus

from ..support.model import call
from ..support.world import Process, World, lines, require_valid, told

TRANSCRIPT = """(Older)
0. user: My sister is called Mia.
1. assistant: Noted.
2. user: She plays the cello
and sings.
(Newer)
3. user: What shall I give her?"""
CELLO = {"start_index": 1, "end_index": 2, "context": "Music may be a present."}


def offered(request: LlmRequest) -> list[str]:
    return [tool.name for tool in request.tools]


async def test_memory_search_uses_the_last_input_for_the_archive_and_names_for_the_conversation(
    world: World, process: Process
) -> None:
    agent = await world.agent(process, AgentType.VOICE_CONVO)
    await world.archival.insert("r-1", agent.id, "Where was it? At Luigi's.")
    world.model.follow(call("send_message", message="Luigi's is closed."))
    await process.send(agent, "Luigi is ill.")
    world.model.follow(
        call("search_memory", convo_keyword_queries=["Luigi", "pizza"], start_minutes_ago=60, request_heartbeat=True),
        call("send_message", message="At Luigi's."),
    )
    await process.send(agent, "Where was it?")
    returns = [item for message in world.window(agent).messages for item in message.tool_returns]
    (returned,) = (item for item in returns if item.name == "search_memory")
    found = json.loads(returned.text)
    assert [hit["content"] for hit in found["archival_search_results"]] == ["Where was it? At Luigi's."]
    assert "Luigi is ill." in [hit["content"] for hit in found["convo_keyword_search_results"]["Luigi"]]
    assert found["convo_keyword_search_results"]["pizza"] == []


async def test_time_range_that_ends_before_it_starts_is_refused(world: World, process: Process) -> None:
    agent = await world.agent(process, AgentType.VOICE_CONVO)
    world.model.follow(
        call("search_memory", start_minutes_ago=5, end_minutes_ago=60), call("send_message", message="Sorry.")
    )
    await process.send(agent)
    assert "tool error of search_memory: end_minutes_ago must not be longer ago than start_minutes_ago." in lines(
        world.window(agent).messages
    )


async def test_window_of_a_voice_agent_stays_short_and_every_row_is_kept(world: World, process: Process) -> None:
    agent = await world.agent(process, AgentType.VOICE_CONVO)
    # First a call, its return and the login; each turn adds a message, a call and its return.
    for turn in range(9):
        world.model.follow(call("send_message", message=f"Answer {turn}."))
        await process.send(agent, f"Question {turn}.")
    assert len(world.window(agent).messages) == 1 + 3 + 27
    world.model.follow(call("send_message", message="Answer 9."))
    await process.send(agent, "Question 9.")
    assert len(world.window(agent).messages) == 1 + 33, "up to 30 messages nothing is taken away"
    world.model.follow(call("send_message", message="Answer 10."))
    await process.send(agent, "Question 10.")
    window = world.window(agent).messages
    require_valid(window)
    assert len(window) == 1 + 15 + 3
    assert (window[1].role, window[1].text) == (Role.USER, "Question 5.")
    assert [message.id for message in world.model.last.messages] == [message.id for message in window[:-2]]
    assert "Question 0." in {message.text for message in world.recall.rows[agent.id]}


async def test_long_turn_is_evicted_completely_or_not_at_all(world: World, process: Process) -> None:
    agent = await world.agent(process, AgentType.VOICE_CONVO)
    searches = [call("search_memory", request_heartbeat=True) for _ in range(12)]
    world.model.follow(*searches, call("send_message", message="Found."))
    await process.send(agent, "Look well.")
    world.model.follow(call("send_message", message="Yes."))
    await process.send(agent, "Sure?")
    require_valid(world.window(agent).messages)
    assert world.window(agent).messages[1].role is Role.USER


async def test_transcript_is_stored_in_chunks_and_the_human_block_rewritten(world: World, process: Process) -> None:
    agent = await world.agent(process, AgentType.VOICE_SLEEPTIME)
    first = {"start_index": 0, "end_index": 0, "context": "Family."}
    world.model.follow(
        call("store_memories", chunks=[first, CELLO]),
        call("rethink_user_memory", new_memory="Has a sister."),
        call("rethink_user_memory", new_memory="Has a sister, Mia, who plays the cello."),
        call("finish_rethinking_memory"),
    )
    events = await process.send(agent, TRANSCRIPT)
    assert await world.archival.texts(agent.id) == [
        "Family.\n\nuser: My sister is called Mia.",
        "Music may be a present.\n\nassistant: Noted.\nuser: She plays the cello\nand sings.",
    ]
    assert world.blocks.value(agent.id, "human") == "Has a sister, Mia, who plays the cello."
    choice = world.model.requests[0].tool_choice
    assert (choice.kind, choice.name) == (ToolChoiceKind.NAMED, "store_memories")
    assert [offered(request) for request in world.model.requests] == [
        ["store_memories"],
        ["rethink_user_memory"],
        ["rethink_user_memory", "finish_rethinking_memory"],
        ["rethink_user_memory", "finish_rethinking_memory"],
    ]
    (stopped,) = (body for body in told(events) if isinstance(body, StopEvent))
    assert stopped.reason is StopReason.END_TURN
    require_valid(world.window(agent).messages)


@pytest.mark.parametrize(
    ("said", "chunk", "problem"),
    [
        (TRANSCRIPT, {**CELLO, "end_index": 9}, "from line 1 to line 9; the transcript has the lines 0 to 3"),
        (TRANSCRIPT, {**CELLO, "start_index": 3}, "chunks[1] goes from line 3 to line 2"),
        (TRANSCRIPT, {"start_index": 1, "end_index": 2}, "chunks[1] has no context"),
        (TRANSCRIPT, {**CELLO, "start_index": "one"}, "chunks[1].start_index must be an integer, not a string"),
        ("Just a word.", CELLO, "no transcript"),
    ],
)  # fmt: skip
async def test_invalid_chunks_store_nothing(
    world: World, process: Process, said: str, chunk: dict[str, object], problem: str
) -> None:
    agent = await world.agent(process, AgentType.VOICE_SLEEPTIME)
    world.model.follow(
        call("store_memories", chunks=[CELLO, chunk]),
        call("rethink_user_memory", new_memory="Nothing new."),
        call("finish_rethinking_memory"),
    )
    await process.send(agent, said)
    returned = next(item for message in world.turn(agent, 2) for item in message.tool_returns)
    assert returned.status is ToolStatus.ERROR
    assert problem in returned.text
    assert await world.archival.texts(agent.id) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0. user: Hi\n1. assistant: Hello", {0: "user: Hi", 1: "assistant: Hello"}),
        ("(Older) 4: user: Hi\n5) (Newer) assistant: Hello", {4: "user: Hi", 5: "assistant: Hello"}),
        ("(Older) what leaves:\n7. a\nb\n\n(Newer)\nnot of 7\n8. c", {7: "a\nb", 8: "c"}),
        ("No index at all.", {}),
    ],
)
def test_transcript_lines_are_selected_by_index(text: str, expected: dict[int, str]) -> None:
    assert transcript(text) == expected
