"""What does not fit a summariser's window is read in parts: nothing is left out, and nobody is asked without end."""

import asyncio
import contextlib
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mnemesh_kit.clock import FrozenClock
from mnemesh_orchestrator.compaction.chunked_summary import MAX_PARTS, MIN_CAPACITY, ChunkedReader
from mnemesh_orchestrator.compaction.port import SummaryFailed
from mnemesh_orchestrator.llm.errors import ContextOverflow, ProviderUnavailable
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.compaction import CompactionSettings
from mnemesh_orchestrator.model.models import ModelSettings
from mnemesh_types.messages import Role

from ..support.faults import Death, Faults
from ..support.model import Item, say
from ..support.world import ME, Process, World, dead, require_valid
from .conftest import LONG, Speaker, memories, roles, small_agent, summary_of, talk

WIDE = ModelSettings(context_window=60_000)
READER = ModelSettings(context_window=3_000)
READABLE = 3_000 // 2 * 4
"""Characters of what leaves room for the answer."""
TURNS = 24
LEFT_OUT = "characters are left out here"


def reading(mode: str) -> CompactionSettings:
    """By a summariser whose window takes a quarter of the conversation at most."""
    return CompactionSettings(mode, model="anthropic/small", model_settings=READER, sliding_window_percentage=0.6)


async def told_agent(world: World, process: Process, mode: str) -> Agent:
    """An agent that was told a code at each turn, and has all of them in its window."""
    agent = await small_agent(world, process, model_settings=WIDE, compaction_settings=reading(mode))
    for number in range(TURNS):
        await process.send(agent, f"The code of item {number} is {number + 4_700}. {LONG}")
    return agent


def codes(text: str) -> list[int]:
    """The items whose codes a text knows."""
    return [int(item) for item, code in re.findall(r"item (\d+) is (\d+)", text) if int(code) == int(item) + 4_700]


def keeps_codes(request: LlmRequest) -> Item:
    """Notes with every code that the request shows, also those of earlier notes."""
    return say(" ".join(["Notes."] + [f"item {item} is {item + 4_700}." for item in codes(request.messages[-1].text)]))


async def compact(process: Process, agent: Agent) -> str:
    place = (agent.id, agent.default_conversation_id)
    return (await process.compactions.compact(ME, None, *place, None, dry_run=False)).summary


def fresh(request: LlmRequest) -> str:
    """What a request shows besides the notes on earlier parts."""
    text = request.messages[-1].text
    return text.partition("\n")[2] if text.startswith("earlier notes: ") else text


async def test_what_was_said_in_the_middle_reaches_the_summary(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await told_agent(world, process, "all")
    speaker.summary = keeps_codes
    before = world.window(agent).messages
    assert codes(await compact(process, agent)) == list(range(TURNS))
    asked = speaker.summaries
    assert 3 < len(asked) <= MAX_PARTS
    assert {request.model.handle for request in asked} == {"anthropic/small"}
    for number, request in enumerate(asked):
        assert len(request.messages[-1].text) < READABLE
        assert request.messages[-1].text.startswith("earlier notes: ") is (number > 0)
        assert LEFT_OUT not in request.messages[-1].text
    lines = "\n".join(map(fresh, asked)).split("\n")
    said = [f"{m.role.value}: {m.text}" for m in before[1:]]
    assert lines == said, "each line is read once, in order"
    assert roles(world.window(agent).messages) == ["system", "summary"]


async def test_a_summariser_that_takes_it_all_is_asked_once(world: World, process: Process, speaker: Speaker) -> None:
    agent = await told_agent(world, process, "all")
    speaker.summary = keeps_codes
    settings = CompactionSettings("all", model_settings=WIDE)
    await process.compactions.compact(ME, None, agent.id, agent.default_conversation_id, settings, dry_run=False)
    assert len(speaker.summaries) == 1


@pytest.mark.parametrize("mode", ["sliding_window", "self_compact_sliding_window", "self_compact_all"])
async def test_every_mode_that_reads_transcripts_reads_them_in_parts(
    world: World, process: Process, speaker: Speaker, mode: str
) -> None:
    """A self mode's own model, which finds its context too long, is stood in for by a transcript."""
    agent = await told_agent(world, process, mode)
    speaker.summary = lambda request: keeps_codes(request) if request.is_verbatim else too_long()
    speaker.turn = lambda request: too_long()
    summary = await compact(process, agent)
    left = {m.id for m in world.window(agent).messages}
    gone = [row for row in world.recall.rows[agent.id] if row.role is Role.USER and row.id not in left]
    assert codes(summary) == codes(" ".join(row.text for row in gone))
    assert len(codes(summary)) > 6
    assert len([request for request in speaker.summaries if request.is_verbatim]) > 1


def too_long() -> Item:
    return ContextOverflow("too long", provider="scripted", status=400)


async def test_where_a_part_gives_nothing_the_rest_is_read_at_once(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await told_agent(world, process, "all")
    speaker.summary = lambda request: say(" ") if len(speaker.summaries) == 2 else keeps_codes(request)
    known = codes(await compact(process, agent))
    assert len(speaker.summaries) == 3
    first = codes(speaker.summaries[0].messages[-1].text)
    assert known[: len(first)] == first == list(range(len(first))), "notes on the first part go on"
    assert known[-1] == TURNS - 1
    assert LEFT_OUT in speaker.summaries[2].messages[-1].text
    assert len(speaker.summaries[2].messages[-1].text) < READABLE


async def test_a_model_that_goes_away_between_parts_leaves_it_all_to_the_next(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await told_agent(world, process, "all")

    def dies_in_part_two(request: LlmRequest) -> Item:
        if len(speaker.summaries) == 2:
            return ProviderUnavailable("503", provider="scripted", status=503)
        return keeps_codes(request)

    speaker.summary = dies_in_part_two
    assert len(codes(await compact(process, agent))) > TURNS // 2
    assert [request.model.handle for request in speaker.summaries][:3] == [
        "anthropic/small",
        "anthropic/small",
        "scripted/one",
    ]
    assert speaker.summaries[2].messages[-1].text.startswith("user: The code of item 0")


@pytest.mark.parametrize(("seconds", "most"), [(100, 2), (1, MAX_PARTS)])
async def test_parts_are_read_while_there_is_time(
    world: World, process: Process, speaker: Speaker, seconds: int, most: int
) -> None:
    agent = await told_agent(world, process, "all")

    def slowly(request: LlmRequest) -> Item:
        world.clock.advance(seconds)
        return keeps_codes(request)

    speaker.summary = slowly
    known = codes(await compact(process, agent))
    assert 2 <= len(speaker.summaries) <= most
    assert (known == list(range(TURNS))) is (seconds == 1)
    assert (known[0], known[-1]) == (0, TURNS - 1)


async def test_a_conversation_of_any_length_takes_a_bounded_number_of_calls(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await small_agent(
        world, process, model_settings=ModelSettings(context_window=400_000), compaction_settings=reading("all")
    )
    await talk(process, agent, 40, LONG * 12)
    speaker.summary = keeps_codes
    await process.send(agent, "The code of item 7 is 4707.")
    assert codes(await compact(process, agent)) == [7]
    assert 4 < len(speaker.summaries) <= MAX_PARTS
    for request in speaker.summaries:
        assert len(request.messages[-1].text) < READABLE


async def test_a_death_between_parts_leaves_the_old_window_and_the_repeat_reads_all_again(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await told_agent(world, process, "all")
    speaker.used = 60_000  # compacts behind the step
    speaker.summary = keeps_codes
    before = world.window(agent).messages
    deaths = 0

    def dies(request: LlmRequest) -> Item:
        nonlocal deaths
        if len(speaker.summaries) == 3 and not deaths:
            deaths += 1
            raise Death
        return keeps_codes(request)

    speaker.summary = dies
    with contextlib.suppress(Death):
        await process.send(agent, "And now?")
    await dead(process)
    assert world.window(agent).messages[: len(before)] == before
    asked = len(speaker.summaries)
    world.faults = Faults()
    second = world.process()
    await second.recover()
    window = world.window(agent).messages
    require_valid(window)
    assert roles(window).count("summary") == 1
    assert codes(summary_of(window)) == list(range(TURNS))
    assert speaker.summaries[asked].messages[-1].text.startswith("user: The code of item 0"), "from the first part on"
    assert len([row for row in world.recall.rows[agent.id] if row.role is Role.SUMMARY]) == 1
    await second.worker.stop()


async def test_memories_are_drawn_from_parts_of_whole_turns(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(world, process, model_settings=WIDE, compaction_settings=reading("episodic"))
    for number in range(TURNS):
        told = {2: "the boat is red.", 20: "the boat is blue."}.get(number, f"item {number} is dull.")
        await process.send(agent, f"Remember: {told} {LONG}")
    speaker.summary = memories
    before = world.window(agent).messages
    summary = await compact(process, agent)
    asked = speaker.summaries
    assert 3 < len(asked) <= MAX_PARTS
    for request in asked:
        shown = request.messages[-1].text
        assert re.search(r"^\[(m\d+)[^\]]*\] (\w+): ", shown, re.MULTILINE).groups() == ("m1", "user")  # type: ignore[union-attr]
        assert "messages are left out here" not in shown
    evicted = [m.id for m in before[1:] if m not in world.window(agent).messages]
    covered = [id_ for commit in world.episodes.commits for id_ in commit.episode.message_ids]
    assert covered == evicted, "every message in one episode"
    held = world.episodes.texts(agent.id)
    assert "the boat is blue." not in held, "turn 20 stays in the window"
    assert len(held) == len(evicted) // 2
    assert f"{len(asked)}) They spoke of" not in summary


async def test_a_fact_of_an_earlier_part_is_contradicted_by_a_later_one(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await small_agent(world, process, model_settings=WIDE, compaction_settings=reading("episodic"))
    old = world.episodes.add(agent.id, "the boat is white.")
    for number in range(TURNS):
        told = {2: "the boat is red.", 9: "the car is new.", 14: "the boat is blue.", 16: "the car is new."}
        await process.send(agent, f"Remember: {told.get(number, f'item {number} is dull.')} {LONG}")
    users = [m for m in world.window(agent).messages if m.role is Role.USER]
    speaker.summary = memories
    summary = await compact(process, agent)
    assert len(speaker.summaries) > 3
    changes = {c.text: c for commit in world.episodes.commits for c in commit.changes}
    red, blue, car = (changes[text] for text in ("the boat is red.", "the boat is blue.", "the car is new."))
    assert (red.change.value, red.fact_id, red.ended_at) == ("supersede", old.id, blue.told_at)
    assert (blue.change.value, blue.fact_id, blue.ended_at) == ("add", None, None)
    assert red.told_at < blue.told_at == users[14].created_at
    assert car.message_ids == (users[9].id, users[16].id), "said again, it rests on both"
    held = world.episodes.texts(agent.id)
    assert "the boat is blue." in held
    assert not {"the boat is red.", "the boat is white."} & set(held)
    assert held.count("the car is new.") == 1
    assert "- the boat is blue." in summary
    assert "red" not in summary


async def test_where_a_part_draws_nothing_the_rest_is_drawn_from_at_once(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await small_agent(world, process, model_settings=WIDE, compaction_settings=reading("episodic"))
    for number in range(TURNS):
        await process.send(agent, f"Remember: item {number} is dull. {LONG}")

    def silent_once(request: LlmRequest) -> Item:
        return say(" ") if len(speaker.summaries) == 2 else memories(request)

    speaker.summary = silent_once
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
def test_parts_follow_on_each_other_and_their_number_is_bounded(
    sizes: Sequence[int], room: int, script: Sequence[str]
) -> None:
    asked: list[tuple[int, int]] = []
    read: list[int] = []

    async def ask(start: int, end: int, limit: int) -> None:
        outcome = script[len(asked)] if len(asked) < len(script) else "read"
        asked.append((start, end))
        assert MIN_CAPACITY <= limit <= room
        if outcome == "overflow":
            raise ContextOverflow("too long", provider="scripted")
        if outcome != "read":
            raise SummaryFailed("nothing", is_down=outcome == "down")
        read.extend(range(start, end))

    try:
        asyncio.run(ChunkedReader(FrozenClock(), 60.0).read(sizes, room, ask))
    except SummaryFailed:
        used = script[: len(asked)]
        assert used[-1] == "down" or used.count("overflow") == 3 or used.count("nothing") <= 2
    else:
        assert read == list(range(len(sizes)))
    assert read == list(range(len(read)))
    assert len(asked) <= MAX_PARTS + 1 + 2 + 1
    assert (len(asked) == 1) or sum(sizes) > room or len(script) > 0
