"""Texts that exceed a summary model's window are read in parts, completely and with a bounded number of calls."""

import asyncio
import contextlib
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.compaction.planner import SummaryFailed
from mnemesh_orchestrator.compaction.summarizers import MAX_PARTS, MIN_CAPACITY, ChunkedReader
from mnemesh_orchestrator.llm.errors import ContextOverflow, ProviderUnavailable
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_types.agents import CompactionSettings, ModelSettings
from mnemesh_types.messages import Role

from ..support.faults import Crash, Faults
from ..support.model import Item, say
from ..support.world import ME, Process, World, crashed, require_valid
from .conftest import LONG, Speaker, memories, roles, small_agent, summary_of, talk

WIDE = ModelSettings(context_window=60_000)
READER = ModelSettings(context_window=3_000)
READABLE = 3_000 // 2 * 4
"""The maximum characters of a request that leaves tokens for the answer."""
TURNS = 24
LEFT_OUT = "characters are left out here"


def small_reader(mode: str) -> CompactionSettings:
    """Returns settings with a summary model whose window holds at most a quarter of the conversation."""
    return CompactionSettings(mode, model="anthropic/small", model_settings=READER, sliding_window_percentage=0.6)


async def agent_with_codes(world: World, process: Process, mode: str) -> Agent:
    """Creates an agent that got a code in each turn and has all of them in its window."""
    agent = await small_agent(world, process, model_settings=WIDE, compaction_settings=small_reader(mode))
    for number in range(TURNS):
        await process.send(agent, f"The code of item {number} is {number + 4_700}. {LONG}")
    return agent


def codes(text: str) -> list[int]:
    """Returns the items whose codes a text contains."""
    return [int(item) for item, code in re.findall(r"item (\d+) is (\d+)", text) if int(code) == int(item) + 4_700]


def repeat_codes(request: LlmRequest) -> Item:
    """Answers with every code of the request, including those of earlier notes."""
    return say(" ".join(["Notes."] + [f"item {item} is {item + 4_700}." for item in codes(request.messages[-1].text)]))


async def compact(process: Process, agent: Agent) -> str:
    conversation = (agent.id, agent.default_conversation_id)
    return (await process.compactions.compact(ME, None, *conversation, None, dry_run=False)).summary


def new_part(request: LlmRequest) -> str:
    """Returns the text of a request without the notes on earlier parts."""
    text = request.messages[-1].text
    return text.partition("\n")[2] if text.startswith("earlier notes: ") else text


async def test_middle_of_conversation_reaches_the_summary(world: World, process: Process, speaker: Speaker) -> None:
    agent = await agent_with_codes(world, process, "all")
    speaker.summary = repeat_codes
    before = world.window(agent).messages
    assert codes(await compact(process, agent)) == list(range(TURNS))
    requests = speaker.summaries
    assert 3 < len(requests) <= MAX_PARTS
    assert {request.model.handle for request in requests} == {"anthropic/small"}
    for number, request in enumerate(requests):
        assert len(request.messages[-1].text) < READABLE
        assert request.messages[-1].text.startswith("earlier notes: ") is (number > 0)
        assert LEFT_OUT not in request.messages[-1].text
    lines = "\n".join(map(new_part, requests)).split("\n")
    texts = [f"{m.role.value}: {m.text}" for m in before[1:]]
    assert lines == texts, "each line is read once, in order"
    assert roles(world.window(agent).messages) == ["system", "summary"]


async def test_large_summary_model_is_called_once(world: World, process: Process, speaker: Speaker) -> None:
    agent = await agent_with_codes(world, process, "all")
    speaker.summary = repeat_codes
    settings = CompactionSettings("all", model_settings=WIDE)
    await process.compactions.compact(ME, None, agent.id, agent.default_conversation_id, settings, dry_run=False)
    assert len(speaker.summaries) == 1


@pytest.mark.parametrize("mode", ["sliding_window", "self_compact_sliding_window", "self_compact_all"])
async def test_every_transcript_mode_reads_in_parts(
    world: World, process: Process, speaker: Speaker, mode: str
) -> None:
    """A self mode whose own model finds its context too long falls back to a transcript."""
    agent = await agent_with_codes(world, process, mode)
    speaker.summary = lambda request: repeat_codes(request) if request.is_verbatim else too_long()
    speaker.turn = lambda request: too_long()
    summary = await compact(process, agent)
    left = {m.id for m in world.window(agent).messages}
    evicted = [row for row in world.recall.rows[agent.id] if row.role is Role.USER and row.id not in left]
    assert codes(summary) == codes(" ".join(row.text for row in evicted))
    assert len(codes(summary)) > 6
    assert len([request for request in speaker.summaries if request.is_verbatim]) > 1


def too_long() -> Item:
    return ContextOverflow("too long", provider="scripted", status=400)


async def test_rest_is_read_at_once_after_part_without_notes(world: World, process: Process, speaker: Speaker) -> None:
    agent = await agent_with_codes(world, process, "all")
    speaker.summary = lambda request: say(" ") if len(speaker.summaries) == 2 else repeat_codes(request)
    known = codes(await compact(process, agent))
    assert len(speaker.summaries) == 3
    first = codes(speaker.summaries[0].messages[-1].text)
    assert known[: len(first)] == first == list(range(len(first))), "notes on the first part are carried over"
    assert known[-1] == TURNS - 1
    assert LEFT_OUT in speaker.summaries[2].messages[-1].text
    assert len(speaker.summaries[2].messages[-1].text) < READABLE


async def test_next_model_reads_everything_if_model_fails_between_parts(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await agent_with_codes(world, process, "all")

    def fail_in_part_two(request: LlmRequest) -> Item:
        if len(speaker.summaries) == 2:
            return ProviderUnavailable("503", provider="scripted", status=503)
        return repeat_codes(request)

    speaker.summary = fail_in_part_two
    assert len(codes(await compact(process, agent))) > TURNS // 2
    assert [request.model.handle for request in speaker.summaries][:3] == [
        "anthropic/small",
        "anthropic/small",
        "scripted/one",
    ]
    assert speaker.summaries[2].messages[-1].text.startswith("user: The code of item 0")


@pytest.mark.parametrize(("seconds", "most"), [(100, 2), (1, MAX_PARTS)])
async def test_parts_are_read_within_time_limit(
    world: World, process: Process, speaker: Speaker, seconds: int, most: int
) -> None:
    agent = await agent_with_codes(world, process, "all")

    def slowly(request: LlmRequest) -> Item:
        world.clock.advance(seconds)
        return repeat_codes(request)

    speaker.summary = slowly
    known = codes(await compact(process, agent))
    assert 2 <= len(speaker.summaries) <= most
    assert (known == list(range(TURNS))) is (seconds == 1)
    assert (known[0], known[-1]) == (0, TURNS - 1)


async def test_number_of_calls_is_bounded_for_any_length(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(
        world, process, model_settings=ModelSettings(context_window=400_000), compaction_settings=small_reader("all")
    )
    await talk(process, agent, 40, LONG * 12)
    speaker.summary = repeat_codes
    await process.send(agent, "The code of item 7 is 4707.")
    assert codes(await compact(process, agent)) == [7]
    assert 4 < len(speaker.summaries) <= MAX_PARTS
    for request in speaker.summaries:
        assert len(request.messages[-1].text) < READABLE


async def test_crash_between_parts_leaves_old_window_and_repeat_reads_everything(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await agent_with_codes(world, process, "all")
    speaker.used = 60_000  # compacts after the step
    speaker.summary = repeat_codes
    before = world.window(agent).messages
    crashes = 0

    def crash_once(request: LlmRequest) -> Item:
        nonlocal crashes
        if len(speaker.summaries) == 3 and not crashes:
            crashes += 1
            raise Crash
        return repeat_codes(request)

    speaker.summary = crash_once
    with contextlib.suppress(Crash):
        await process.send(agent, "And now?", include_compaction_events=True)  # compacts before the end of the run
    await crashed(process)
    assert world.window(agent).messages[: len(before)] == before
    requests = len(speaker.summaries)
    world.faults = Faults()
    second = world.process()
    await second.recover()
    window = world.window(agent).messages
    require_valid(window)
    assert roles(window).count("summary") == 1
    assert codes(summary_of(window)) == list(range(TURNS))
    assert speaker.summaries[requests].messages[-1].text.startswith("user: The code of item 0"), (
        "starting with the first part"
    )
    assert len([row for row in world.recall.rows[agent.id] if row.role is Role.SUMMARY]) == 1
    await second.worker.stop()


async def test_memories_are_extracted_from_parts_of_whole_turns(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await small_agent(world, process, model_settings=WIDE, compaction_settings=small_reader("episodic"))
    for number in range(TURNS):
        text = {2: "the boat is red.", 20: "the boat is blue."}.get(number, f"item {number} is dull.")
        await process.send(agent, f"Remember: {text} {LONG}")
    speaker.summary = memories
    before = world.window(agent).messages
    summary = await compact(process, agent)
    requests = speaker.summaries
    assert 3 < len(requests) <= MAX_PARTS
    for request in requests:
        shown = request.messages[-1].text
        assert re.search(r"^\[(m\d+)[^\]]*\] (\w+): ", shown, re.MULTILINE).groups() == ("m1", "user")  # type: ignore[union-attr]
        assert "messages are left out here" not in shown
    evicted = [m.id for m in before[1:] if m not in world.window(agent).messages]
    covered = [id_ for commit in world.episodes.commits for id_ in commit.episode.message_ids]
    assert covered == evicted, "every message in one episode"
    held = world.episodes.texts(agent.id)
    assert "the boat is blue." not in held, "turn 20 stays in the window"
    assert len(held) == len(evicted) // 2
    assert f"{len(requests)}) They spoke of" not in summary


async def test_later_part_contradicts_fact_of_earlier_part(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(world, process, model_settings=WIDE, compaction_settings=small_reader("episodic"))
    old = world.episodes.add(agent.id, "the boat is white.")
    for number in range(TURNS):
        text = {2: "the boat is red.", 9: "the car is new.", 14: "the boat is blue.", 16: "the car is new."}
        await process.send(agent, f"Remember: {text.get(number, f'item {number} is dull.')} {LONG}")
    users = [m for m in world.window(agent).messages if m.role is Role.USER]
    speaker.summary = memories
    summary = await compact(process, agent)
    assert len(speaker.summaries) > 3
    changes = {c.text: c for commit in world.episodes.commits for c in commit.changes}
    red, blue, car = (changes[text] for text in ("the boat is red.", "the boat is blue.", "the car is new."))
    assert (red.change.value, red.fact_id, red.ended_at) == ("supersede", old.id, blue.told_at)
    assert (blue.change.value, blue.fact_id, blue.ended_at) == ("add", None, None)
    assert red.told_at < blue.told_at == users[14].created_at
    assert car.message_ids == (users[9].id, users[16].id), "a repeated fact has both messages as evidence"
    held = world.episodes.texts(agent.id)
    assert "the boat is blue." in held
    assert not {"the boat is red.", "the boat is white."} & set(held)
    assert held.count("the car is new.") == 1
    assert "- the boat is blue." in summary
    assert "red" not in summary


async def test_rest_is_extracted_at_once_after_part_without_memories(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await small_agent(world, process, model_settings=WIDE, compaction_settings=small_reader("episodic"))
    for number in range(TURNS):
        await process.send(agent, f"Remember: item {number} is dull. {LONG}")

    def empty_once(request: LlmRequest) -> Item:
        return say(" ") if len(speaker.summaries) == 2 else memories(request)

    speaker.summary = empty_once
    await compact(process, agent)
    assert len(speaker.summaries) == 3
    assert "messages are left out here" in speaker.summaries[2].messages[-1].text
    assert len(world.episodes.commits) == 2
    assert world.episodes.texts(agent.id)[0] == "item 0 is dull."


@given(
    st.lists(st.integers(1, 3_000), min_size=1, max_size=400),
    st.integers(MIN_CAPACITY, 30_000),
    st.lists(st.sampled_from(["read", "read", "read", "overflow", "nothing", "down"]), max_size=12),
)
def test_parts_are_consecutive_and_their_number_is_bounded(
    sizes: Sequence[int], capacity: int, script: Sequence[str]
) -> None:
    requests: list[tuple[int, int]] = []
    read: list[int] = []

    async def read_part(start: int, end: int, limit: int) -> None:
        outcome = script[len(requests)] if len(requests) < len(script) else "read"
        requests.append((start, end))
        assert MIN_CAPACITY <= limit <= capacity
        if outcome == "overflow":
            raise ContextOverflow("too long", provider="scripted")
        if outcome != "read":
            raise SummaryFailed("nothing", is_down=outcome == "down")
        read.extend(range(start, end))

    try:
        asyncio.run(ChunkedReader(FrozenClock(), 60.0).read(sizes, capacity, read_part))
    except SummaryFailed:
        used = script[: len(requests)]
        assert used[-1] == "down" or used.count("overflow") == 3 or used.count("nothing") <= 2
    else:
        assert read == list(range(len(sizes)))
    assert read == list(range(len(read)))
    assert len(requests) <= MAX_PARTS + 1 + 2 + 1
    assert (len(requests) == 1) or sum(sizes) > capacity or len(script) > 0
