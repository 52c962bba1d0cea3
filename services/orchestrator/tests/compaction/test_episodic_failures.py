"""Episodic compaction when models answer badly, or memory is unavailable, refused or changed at the same time."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from mnemesh_kit.errors import InvalidArgument, PermissionDenied, Unimplemented
from mnemesh_orchestrator.llm.errors import ContextOverflow, ProviderUnavailable
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.model.agents import AgentType
from mnemesh_orchestrator.model.runs import StopReason
from mnemesh_testkit.fakes.fake_summarizer import extract_memories
from mnemesh_testkit.plugin import sampled
from mnemesh_types.messages import Role

from ..support.model import Item, call, say
from ..support.world import Process, World, require_valid
from .conftest import Speaker, memories, roles, summary_of, talk
from .episodic_agents import KINDS, compact, episodic_agent


def corrupted(change: Callable[[dict[str, Any]], Any]) -> Callable[[LlmRequest], Item]:
    def answer(request: LlmRequest) -> Item:
        value = extract_memories(request.messages[1].text)
        return say(json.dumps(change(value)))

    return answer


async def test_unusable_answer_is_returned_to_the_model_with_the_problem(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await episodic_agent(world, process)
    await talk(process, agent, 6, "Remember: the boat is red.")
    answers: Iterator[Callable[[LlmRequest], Item]] = iter(
        [
            lambda request: say("Sure! They spoke of a boat."),
            corrupted(lambda value: {**value, "episodes": [{**value["episodes"][0], "last_message": "m77"}]}),
            corrupted(lambda value: value),
        ]
    )

    def answer(request: LlmRequest) -> Item:
        return next(answers)(request)

    speaker.summary = answer
    assert "- the boat is red." in await compact(process, agent)
    first_request = speaker.summaries
    assert [len(request.messages) for request in first_request] == [2, 4, 4]
    assert all(request.response_format.kind == "json_schema" for request in first_request)
    assert first_request[1].messages[:2] == first_request[0].messages
    assert first_request[1].messages[2].text == "Sure! They spoke of a boat."
    assert "it is not JSON" in first_request[1].messages[3].text
    assert "there is no message 'm77'" in first_request[2].messages[3].text


FAILURES: dict[str, Callable[[LlmRequest], Item]] = {
    "down": lambda request: ProviderUnavailable("503", provider="scripted", status=503),
    "overflow": lambda request: ContextOverflow("too long", provider="scripted", status=400),
    "empty": lambda request: say(""),
    "prose": lambda request: say("They spoke of a boat, and I liked it."),
    "list": lambda request: say("[1, 2, 3]"),
    "no episode": lambda request: say('{"episodes": [], "facts": []}'),
    "null": lambda request: say("null"),
    "deep": lambda request: say("[" * 5_000),
    "tool": lambda request: call("archival_memory_search", query="x"),
}


@KINDS
@pytest.mark.parametrize("failure", sampled(FAILURES, 3))
async def test_failed_extraction_falls_back_to_transcript_then_digest(
    world: World, process: Process, speaker: Speaker, failure: str, kind: AgentType
) -> None:
    agent = await episodic_agent(world, process, kind)
    await process.send(agent, "The code word is zebra-crossing.")
    await talk(process, agent, 6)

    def plain(request: LlmRequest) -> Item:
        return say("Plain notes.") if request.response_format.kind == "text" else FAILURES[failure](request)

    speaker.summary = plain if failure not in ("down", "overflow", "tool", "empty") else FAILURES[failure]
    speaker.used = 5_300
    await process.send(agent, "And?")
    speaker.used = 100
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN
    window = world.window(agent).messages
    require_valid(window)
    assert world.episodes.commits == []
    text = summary_of(window)
    assert text == "Plain notes." or (text.startswith("No model could be asked") and "zebra-crossing" in text)
    assert window[2].role is Role.USER
    await process.send(agent, "Still there?")
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN
    found = (await world.recall.search(agent.id, "zebra-crossing")).hits
    assert Role.USER in [hit.message.role for hit in found]


async def test_unreadable_memory_does_not_stop_agent(world: World, process: Process, speaker: Speaker) -> None:
    agent = await episodic_agent(world, process)
    await talk(process, agent, 6, "Hello")
    world.faults.unavailable["episodes.bundle"] = 1
    assert await compact(process, agent) == "They spoke of work."
    assert world.episodes.commits == []


@pytest.mark.parametrize("fault", ["unavailable", "lost"])
async def test_unavailable_recall_is_awaited_and_lost_response_duplicates_nothing(
    world: World, process: Process, speaker: Speaker, fault: str
) -> None:
    agent = await episodic_agent(world, process)
    speaker.summary = memories
    await talk(process, agent, 9, "Remember: the boat is red.")
    getattr(world.faults, fault)["recall.replace_context"] = 5
    speaker.used = 5_300
    await process.send(agent, "And?")
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN
    assert len(world.waits) == 5
    assert len(world.episodes.commits) == 1
    assert len(speaker.summaries) == 1
    assert "- the boat is red." in summary_of(world.window(agent).messages)


async def test_concurrent_change_of_window_is_not_overwritten(world: World, process: Process, speaker: Speaker) -> None:
    agent = await episodic_agent(world, process)
    speaker.summary = memories
    await talk(process, agent, 9, "Remember: the boat is red.")

    async def reset_window(name: str) -> None:
        if name != "recall.replace_context":
            return
        process.faults.on_call = None
        window = world.window(agent)
        await world.recall.replace_context(
            "the-owner", agent.id, window.conversation_id, window.version, [m.id for m in window.messages[:1]]
        )

    process.faults.on_call = reset_window
    speaker.used = 5_300
    await process.send(agent, "And?")
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN
    assert roles(world.window(agent).messages) == ["system"]
    assert world.episodes.texts(agent.id) == [], "memories are stored with their window, or not at all"


@pytest.mark.parametrize("error", [InvalidArgument("no", field="x"), Unimplemented("no"), PermissionDenied("no")])
async def test_refused_episode_does_not_stop_agent(
    world: World, process: Process, speaker: Speaker, error: Any
) -> None:
    agent = await episodic_agent(world, process)
    speaker.summary = memories
    await talk(process, agent, 9, "Remember: the boat is red.")
    world.recall.refuses = error
    assert "- the boat is red." in await compact(process, agent)
    assert roles(world.window(agent).messages)[1] == "summary"


async def test_fact_that_was_closed_concurrently_is_added_again(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await episodic_agent(world, process)
    old = world.episodes.add(agent.id, "the boat is red.")
    await talk(process, agent, 6, "Remember: the boat is blue.")

    def meanwhile(request: LlmRequest) -> Item:
        world.episodes.invalidate(old)
        return memories(request)

    speaker.summary = meanwhile
    await compact(process, agent)
    assert world.episodes.texts(agent.id) == ["the boat is blue."]
    assert len(world.episodes.commits) == 1
