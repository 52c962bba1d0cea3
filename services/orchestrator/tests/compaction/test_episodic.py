"""The episodic mode in whole conversations: stored memories, the window, and crashes."""

import contextlib
from collections import Counter
from pathlib import Path

import pytest
from mnemesh_kit.idempotency import RequestKey
from mnemesh_orchestrator.compaction.episodic import EPISODIC_HEADING
from mnemesh_orchestrator.errors import NothingToCompact
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.conversations import open_request
from mnemesh_orchestrator.model.rules import RequiresApproval
from mnemesh_orchestrator.model.runs import RunStatus, StopReason
from mnemesh_testkit.plugin import Sample
from mnemesh_types.agents import CompactionSettings
from mnemesh_types.messages import Approve, Role

from ..support.faults import Crash, Faults
from ..support.model import Item, call, say
from ..support.world import ME, Process, World, crashed, kinds, opened, require_valid
from .conftest import LONG, SMALL, Speaker, is_summary_request, memories, roles, small_agent, summary_of, talk
from .episodic_agents import EPISODIC, KINDS, compact, episodic_agent


@KINDS
async def test_evicted_turns_become_episode_and_facts_and_four_turns_are_kept(
    world: World, process: Process, speaker: Speaker, kind: AgentType
) -> None:
    agent = await episodic_agent(world, process, kind)
    speaker.summary = memories
    await process.send(agent, "Remember: Ada is a sailor.")
    await talk(process, agent, 5, "Hello")
    before = world.window(agent).messages
    shown = await compact(process, agent)
    after = world.window(agent).messages
    require_valid(after)
    assert [m.text for m in after[2:] if m.role is Role.USER] == [f"{n}. Hello" for n in range(1, 5)]
    assert after[2:] == before[len(before) - len(after) + 2 :]
    gone = before[1 : len(before) - len(after) + 2]
    assert (
        summary_of(after)
        == shown
        == (
            f"{EPISODIC_HEADING}\n1) They spoke of {len(gone)} things.\n\n"
            "[MEMORY:SEMANTIC]\n- Ada is a sailor.\n\n[RECENT TURNS]\nThe last 4 follow as messages."
        )
    )
    (commit,) = world.episodes.commits
    assert commit.episode.message_ids == tuple(m.id for m in gone)
    assert [change.message_ids for change in commit.changes] == [(before[1].id,)]
    assert commit.changes[0].told_at == before[1].created_at
    assert commit.model == "scripted/one"


async def test_snapshot_changes_only_at_compactions(world: World, process: Process, speaker: Speaker) -> None:
    agent = await episodic_agent(world, process)
    speaker.summary = memories
    seen: list[str] = []
    for number in range(60):
        compactions = len(speaker.summaries)
        await process.send(agent, f"Remember: number {number} is dull. {LONG * 3}")
        head = world.window(agent).messages[1]
        if head.role is not Role.SUMMARY:
            continue
        if len(speaker.summaries) == compactions and seen:
            assert head.text == seen[-1]
        else:
            seen.append(head.text)
    assert 3 < len(seen) == len(set(seen)) == len(speaker.summaries)
    assert len(world.episodes.commits) == len(seen)
    held = world.episodes.texts(agent.id)
    assert held == [f"number {n} is dull." for n in range(len(held))]
    last = summary_of(world.window(agent).messages)
    assert last.count("\n- ") == 20
    assert [line[:3] for line in last.splitlines() if line[1:2] == ")"] == ["1) ", "2) ", "3) "]


async def test_contradicted_fact_is_replaced(world: World, process: Process, speaker: Speaker) -> None:
    agent = await episodic_agent(world, process)
    speaker.summary = memories
    await process.send(agent, "Remember: the boat is red.")
    await talk(process, agent, 4, "Hello")
    await compact(process, agent)
    await process.send(agent, "Remember: the boat is blue.")
    await talk(process, agent, 4, "Hello")
    text = await compact(process, agent)
    assert "- the boat is blue." in text
    assert "red" not in text
    assert world.episodes.texts(agent.id) == ["the boat is blue."]
    assert len(world.episodes.closed) == 1
    await process.send(agent, "Remember: the boat is blue.")
    await talk(process, agent, 4, "Hello")
    assert "- the boat is blue." in await compact(process, agent)
    assert [len(ids) for ids in world.episodes.sources.values()] == [1, 2], "a repeated fact has more evidence"


async def test_known_facts_include_those_related_to_the_turns(world: World, process: Process, speaker: Speaker) -> None:
    agent = await episodic_agent(world, process)
    for number in range(70):
        world.episodes.add(agent.id, f"The harbour number {number} is quiet.", 0.9)
    world.episodes.add(agent.id, "the boat is red.", 0.1)
    speaker.summary = memories
    await process.send(agent, "Remember: the boat is blue.")
    await talk(process, agent, 5, "Hello")
    await compact(process, agent)
    known = speaker.summaries[-1].messages[-1].text
    assert known.count("harbour") <= 120
    assert "the boat is red." in known
    assert "the boat is blue." in world.episodes.closed_texts().values()


def test_episodic_mode_triggers_at_four_fifths() -> None:
    from mnemesh_orchestrator.compaction.planner import trigger_ratio

    assert trigger_ratio(EPISODIC) == 0.8
    assert trigger_ratio(CompactionSettings("episodic", trigger_ratio=0.5)) == 0.5


async def test_episodic_mode_triggers_by_count_of_provider(world: World, process: Process, speaker: Speaker) -> None:
    agent = await episodic_agent(world, process)
    speaker.summary = memories
    await talk(process, agent, 6, "Hello")
    speaker.used = 4_704  # of (6000 - 2 %) * 0.8 = 4704
    await process.send(agent, "At the ratio.")
    assert world.episodes.commits == []
    speaker.used = 4_705
    events = await process.send(agent, "Above it.", include_compaction_events=True)
    assert len(world.episodes.commits) == 1
    assert {"CompactionEvent", "summary"} <= set(kinds(events))


async def test_preview_stores_no_memories(world: World, process: Process, speaker: Speaker) -> None:
    agent = await episodic_agent(world, process)
    speaker.summary = memories
    await talk(process, agent, 4, "Hello")
    with pytest.raises(NothingToCompact):
        await compact(process, agent)
    await process.send(agent, "Remember: the boat is red.")
    await talk(process, agent, 4, "Hello")
    before = world.window(agent)
    shown = await compact(process, agent, dry_run=True)
    assert (world.episodes.commits, world.window(agent)) == ([], before)
    assert await compact(process, agent) == shown


async def test_snapshot_of_another_process_is_visible_to_all(world: World, process: Process, speaker: Speaker) -> None:
    agent = await episodic_agent(world, process)
    speaker.summary = memories
    await talk(process, agent, 6, "Remember: the boat is red.")
    await compact(world.process("instance-2"), agent)
    stored = world.window(agent).messages[1].text
    for reader in (process, world.process(), world.process("instance-3")):
        await reader.send(agent, "And?")
        shown = world.model.last.messages
        assert (shown[1].role, shown[1].text) == (Role.SUMMARY, stored), "its previous window is stale"
        assert [m.text for m in shown if m.role is Role.USER][:1] == ["2. Remember: the boat is red."]


async def test_repeated_request_stores_memories_once(world: World, process: Process, speaker: Speaker) -> None:
    agent = await episodic_agent(world, process)
    speaker.summary = memories
    await talk(process, agent, 6, "Remember: the boat is red.")
    key = RequestKey(ME.organization_id, "CompactConversation", "r-1", "f")
    conversation = (agent.id, agent.default_conversation_id)
    world.faults.unavailable["recall.replace_context"] = 1
    with contextlib.suppress(Exception):
        await process.compactions.compact(ME, key, *conversation, None, dry_run=False)
    assert world.episodes.commits == [], "stored with the window, or not at all"
    assert roles(world.window(agent).messages)[1] == "user"
    first = await process.compactions.compact(ME, key, *conversation, None, dry_run=False)
    assert await process.compactions.compact(ME, key, *conversation, None, dry_run=False) == first
    assert len(world.episodes.commits) == 1
    assert len(speaker.summaries) == 1
    assert roles(world.window(agent).messages)[1] == "summary"


async def test_agent_can_change_to_and_from_episodic_mode(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(world, process)
    await talk(process, agent, 6, "Hello")
    await compact(process, agent, CompactionSettings("all"))
    agent = await process.agents.update(ME, None, agent.id, {"compaction_settings": EPISODIC})
    await talk(process, agent, 6, "Remember: the boat is red.")
    speaker.summary = memories
    text = await compact(process, agent)
    summary_input = speaker.summaries[-1].messages[-1].text
    assert "Earlier notes:\nThey spoke of work.\n" in summary_input, "the earlier notes go into the first episode"
    assert "- the boat is red." in text
    await talk(process, agent, 6, "Hello")
    await compact(process, agent)
    assert "Earlier notes" not in speaker.summaries[-1].messages[-1].text, "recall has them"
    sliding = CompactionSettings("sliding_window")
    agent = await process.agents.update(ME, None, agent.id, {"compaction_settings": sliding})
    speaker.summary = lambda request: say("A boat.")
    await talk(process, agent, 3, "Hello")
    assert await compact(process, agent) == "A boat."
    summary_input = speaker.summaries[-1].messages[-1].text
    assert summary_input.startswith(f"earlier notes: {EPISODIC_HEADING}")
    assert "- the boat is red." in summary_input
    assert len(world.episodes.commits) == 2


async def test_middle_of_a_turn_that_alone_is_too_long_becomes_episodes(
    world: World, process: Process, speaker: Speaker
) -> None:
    world.tools.add("print_much", "y" * 4_900)
    agent = await episodic_agent(world, process, tool_names=("print_much",))
    speaker.summary = memories
    await talk(process, agent, 2, "Remember: the boat is red.")
    begun = len(world.model.requests)
    steps = 26

    def print_much(request: LlmRequest) -> Item:
        model_request = [r for r in world.model.requests[begun:] if not is_summary_request(r)]
        return say("Done.") if len(model_request) > steps else call("print_much")

    speaker.turn = print_much
    await process.send(agent, "Print.")
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN
    model_request = [r for r in world.model.requests[begun:] if not is_summary_request(r)]
    assert len(model_request) == steps + 1
    for request in model_request:
        require_valid(request.messages)
        assert "Print." in [m.text for m in request.messages], "the start of the turn stays"
        size = sum(len(m.text) + sum(len(item.text) for item in m.tool_returns) for m in request.messages)
        assert size / 4 < 6_000
    assert len(world.tools.executed) == steps
    covered = [id_ for commit in world.episodes.commits for id_ in commit.episode.message_ids]
    assert len(covered) == len(set(covered))
    assert any(row.tool_returns for row in world.recall.rows[agent.id] if row.id in covered)
    assert "- the boat is red." in summary_of(world.window(agent).messages)


@KINDS
async def test_pending_approval_survives_compaction(world: World, speaker: Speaker, kind: AgentType) -> None:
    process = world.process()
    agent = await episodic_agent(
        world, process, kind, tool_rules=(RequiresApproval("archival_memory_insert"),), include_base_tool_rules=False
    )
    speaker.summary = memories
    await talk(process, agent, 7, "Remember: the boat is red.")
    speaker.turn = lambda request: speaker.reporting(call("archival_memory_insert", content="one"))
    await process.send(agent, "Keep one.")
    waiting = open_request(world.window(agent).messages)
    assert waiting is not None
    assert "- the boat is red." in await compact(process, agent)
    window = world.window(agent).messages
    still = open_request(window)
    assert still is not None
    assert (still.request, still.caller) == (waiting.request, waiting.caller)
    events = [message.text for message in window if message.role is Role.USER and "Remember" in message.text]
    assert len(events) == 4, "the turn with the request stays whole, after four others"
    done = say("Kept.") if kind is AgentType.LETTA_V1 else call("send_message", message="Kept.")
    speaker.turn = lambda request: done
    await process.answer(agent, *(Approve(created.id) for created in still.calls))
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN
    assert await world.archival.texts(agent.id) == ["one"]
    require_valid(world.window(agent).messages)


async def test_agents_share_a_named_scope(world: World, process: Process, speaker: Speaker) -> None:
    shared = CompactionSettings("episodic", memory_scope="team")
    speaker.summary = memories
    one, two = [await small_agent(world, process, name=name, compaction_settings=shared) for name in ("one", "two")]
    await talk(process, one, 6, "Remember: the boat is red.")
    await compact(process, one)
    await talk(process, two, 6, "Remember: the car is green.")
    text = await compact(process, two)
    assert {"- the boat is red.", "- the car is green."} <= set(text.splitlines())
    assert sorted(world.episodes.texts("", "team")) == ["the boat is red.", "the car is green."]
    assert world.episodes.texts(two.id) == []


@pytest.mark.full
async def test_fact_of_turn_3_is_in_the_window_100_turns_later(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await episodic_agent(world, process)
    speaker.summary = memories
    for number in range(100):
        received = "Remember: the key is under the third flowerpot." if number == 3 else f"{number}. {LONG * 2}"
        await process.send(agent, received)
        require_valid(world.window(agent).messages)
        assert len(world.window(agent).messages) < 60
    assert 6 < len(world.episodes.commits) < 50
    assert "- the key is under the third flowerpot." in summary_of(world.window(agent).messages)
    covered = [id_ for commit in world.episodes.commits for id_ in commit.episode.message_ids]
    assert len(covered) == len(set(covered)), "no message is in two episodes"
    rows = [row.id for row in world.recall.rows[agent.id] if row.role not in (Role.SYSTEM, Role.SUMMARY)]
    left = {m.id for m in world.window(agent).messages}
    assert [id_ for id_ in rows if id_ not in left] == covered, "every evicted message is in one"

    def answer(request: LlmRequest) -> Item:
        seen = "\n".join(message.text for message in request.messages)
        return say("Under the third flowerpot." if "third flowerpot" in seen else "I do not know.")

    speaker.turn = answer
    await process.send(agent, "Where is the key?")
    assert world.turn(agent)[-1].text == "Under the third flowerpot."


async def run_and_crash(world: World, agent: Agent, point: int | None) -> int:
    world.faults = Faults()
    world.faults.crashes_at = point
    process = world.process()
    with contextlib.suppress(Crash):
        await process.send(agent, "And now?", include_compaction_events=True)
    await crashed(process)
    return world.faults.points


async def prepare(world: World, kind: AgentType) -> tuple[Agent, Speaker]:
    process = world.process()
    agent = await episodic_agent(world, process, kind, model_settings=SMALL)
    speaker = Speaker(world)
    speaker.summary = memories
    await process.send(agent, "Remember: the boat is red.")
    await talk(process, agent, 5, "Hello")
    await compact(process, agent)
    await process.send(agent, "Remember: the boat is blue.")
    await talk(process, agent, 5, "Hello")
    speaker.used = 5_300
    return agent, speaker


@pytest.fixture
def database_url(request: pytest.FixtureRequest) -> str | None:
    """An empty database of the parametrized engine; None is SQLite."""
    return str(request.getfixturevalue("postgres_url")) if request.param == "postgresql" else None


@pytest.mark.parametrize(
    ("kind", "database_url"),
    [(AgentType.LETTA_V1, "sqlite"), (AgentType.MEMGPT_V2, "postgresql")],
    ids=["v3 on sqlite", "v2 on postgresql"],
    indirect=["database_url"],
)
async def test_crash_at_any_point_neither_duplicates_nor_loses_memories(
    tmp_path: Path, database_url: str | None, kind: AgentType, sample: Sample
) -> None:
    async with opened(tmp_path, database_url) as world:
        agent, _ = await prepare(world, kind)
        points = await run_and_crash(world, agent, None)
        assert {"episodes.bundle", "recall.replace_context"} <= set(world.faults.calls)
        assert len(world.episodes.commits) == 2
        seen: Counter[str] = Counter()
        for point in sample(range(points), 4, 2):
            world.faults = Faults()
            seen[await survives(world, kind, point)] += 1
    assert seen["whole"] >= points // 8, (seen, points)


async def survives(world: World, kind: AgentType, point: int) -> str:
    """Crashes the process of one agent at a point. Returns the stage of the crash, derived from memories and window."""
    agent, _ = await prepare(world, kind)
    kept, version = len(world.episodes.commits), world.window(agent).version
    head = world.window(agent).messages[1].id
    await run_and_crash(world, agent, point)
    is_smaller = world.window(agent).messages[1].id != head
    assert (len(world.episodes.commits) > kept) == is_smaller, f"{point}: one without the other"
    world.faults = Faults()
    second = world.process()
    await second.recover()
    if world.window(agent).version == version:
        await second.worker.stop()
        return "unsent"
    run = await second.outcome(agent)
    if run.status is RunStatus.COMPLETED and world.window(agent).messages[1].id == head:
        # The message had not been sent, so nothing needed compaction.
        assert len(world.episodes.commits) == kept, point
        return "unsent"
    assert (run.status, run.stop_reason) == (RunStatus.COMPLETED, StopReason.END_TURN), (point, run.error)
    require_valid(world.window(agent).messages)
    assert len(world.episodes.commits) == kept + 1, point
    assert world.episodes.texts(agent.id) == ["the boat is blue."], point
    assert summary_of(world.window(agent).messages).count("They spoke of") == 2, point
    own = [commit for commit in world.episodes.commits if commit.scope.agent_id == agent.id]
    covered = [id_ for commit in own for id_ in commit.episode.message_ids]
    assert len(covered) == len(set(covered)), point
    await second.worker.stop()
    return "whole"
