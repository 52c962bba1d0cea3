"""Compactions on demand: they run once, a preview has no effect, and they are refused if nothing can shrink."""

import pytest
from mnemesh_kit.errors import NotFound, RequestIdReused
from mnemesh_kit.idempotency import RequestKey
from mnemesh_orchestrator.compaction.summarizers import CLIPPED, SUMMARY_NOTE
from mnemesh_orchestrator.errors import ConversationBusy, NothingToCompact
from mnemesh_orchestrator.llm.errors import ModelUnknown
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.inputs import OnBusy
from mnemesh_orchestrator.prompt.assembly import system_alert
from mnemesh_types.agents import CompactionResult, CompactionSettings
from mnemesh_types.messages import Role

from ..support.faults import Crash
from ..support.model import Held, call, say
from ..support.world import ME, Process, World, lines, require_valid
from .conftest import Speaker, roles, small_agent, summary_of, talk


def key(request_id: str = "r-1", fingerprint: str = "f") -> RequestKey:
    return RequestKey(ME.organization_id, "CompactConversation", request_id, fingerprint)


async def compact(
    process: Process,
    agent: Agent,
    settings: CompactionSettings | None = None,
    request: RequestKey | None = None,
    *,
    dry_run: bool = False,
    on_busy: OnBusy = OnBusy.WAIT,
) -> CompactionResult:
    conversation = (agent.id, agent.default_conversation_id)
    return await process.compactions.compact(ME, request, *conversation, settings, dry_run=dry_run, on_busy=on_busy)


async def test_sliding_window_evicts_three_of_ten_messages(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(world, process)
    await talk(process, agent, 5, "Hello")
    before = world.window(agent)
    assert len(before.messages) == 11
    result = await compact(process, agent)
    after = world.window(agent).messages
    assert after[2:] == before.messages[4:]
    assert summary_of(after) == result.summary == "They spoke of work."
    assert (result.messages_before, result.messages_after, result.summary_message_id) == (11, 9, after[1].id)
    assert after[1].role is Role.SUMMARY
    require_valid(after)
    evicted = {m.id for m in before.messages[1:4]}
    assert evicted <= {row.id for row in world.recall.rows[agent.id]}, "they stay in recall"


async def test_summary_is_rendered_as_system_alert(world: World, process: Process, speaker: Speaker) -> None:
    from mnemesh_orchestrator.llm.openai_chat import render_body

    agent = await small_agent(world, process, time_zone="America/Los_Angeles")
    await talk(process, agent, 5, "Hello")
    await compact(process, agent)
    await process.send(agent, "Still there?")
    body = render_body(world.model.last)
    summary = world.window(agent).messages[1]
    text = system_alert(f"{SUMMARY_NOTE}They spoke of work.", summary.created_at, "America/Los_Angeles")
    assert body["messages"][1] == {"role": "user", "content": text}
    assert "hidden from view due to conversation memory constraints.\\nThe following is a summary" in text


@pytest.mark.parametrize("kind", [AgentType.LETTA_V1, AgentType.MEMGPT_V2])
async def test_mode_all_leaves_only_the_summary(
    world: World, process: Process, speaker: Speaker, kind: AgentType
) -> None:
    agent = await small_agent(world, process, kind)
    await talk(process, agent, 5, "Hello")
    await compact(process, agent, CompactionSettings("all"))
    assert roles(world.window(agent).messages) == ["system", "summary"]


async def test_preview_has_no_effect(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(world, process)
    await talk(process, agent, 5)
    windows, rows = dict(world.recall.windows), {id_: list(found) for id_, found in world.recall.rows.items()}
    shown = await compact(process, agent, request=key(), dry_run=True)
    assert (world.recall.windows, world.recall.rows) == (windows, rows)
    assert (shown.summary, shown.messages_before) == ("They spoke of work.", 11)
    assert shown.tokens_after < shown.tokens_before
    real = await compact(process, agent, request=key())
    assert (real.messages_after, real.tokens_before, real.tokens_after) == (
        shown.messages_after,
        shown.tokens_before,
        shown.tokens_after,
    )


async def test_reported_figures_are_those_of_the_window(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(world, process)
    await talk(process, agent, 6)
    conversation = await process.windows.resolve(ME, agent.id, agent.default_conversation_id)
    settings = process.agents.effective_settings(*conversation)
    before = await process.windows.report(ME, *conversation, settings)
    result = await compact(process, agent)
    after = await process.windows.report(ME, *conversation, settings)
    assert result.tokens_before == before.total_tokens
    assert result.tokens_after == after.total_tokens
    assert after.summary is not None
    assert after.summary_tokens > 0
    assert before.summary is None


async def test_window_without_history_is_refused(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(world, process)
    before = world.window(agent)
    with pytest.raises(NothingToCompact):
        await compact(process, agent)
    assert world.window(agent) == before
    await talk(process, agent, 3, "Hello")
    await compact(process, agent, CompactionSettings("all"))
    with pytest.raises(NothingToCompact):
        await compact(process, agent, CompactionSettings("all"))


async def test_repeated_request_returns_first_result(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(world, process)
    await talk(process, agent, 5)
    first = await compact(process, agent, request=key())
    after = world.window(agent)
    assert await compact(process, agent, request=key()) == first
    assert world.window(agent) == after
    assert len(speaker.summaries) == 1
    with pytest.raises(RequestIdReused):
        await compact(process, agent, request=key(fingerprint="other"))
    assert (await compact(process, agent, request=key("r-2"))).messages_before == first.messages_after


async def test_request_that_must_not_wait_is_refused_while_a_run_is_active(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await small_agent(world, process)
    await talk(process, agent, 5)
    held = Held(say("Later."))
    speaker.turn = lambda request: held
    run = await process.start(agent, "Hold on.")
    await held.asked.wait()
    with pytest.raises(ConversationBusy):
        await compact(process, agent, on_busy=OnBusy.REJECT)
    held.released.set()
    await process.follow(run)
    await compact(process, agent)


async def test_message_sent_during_compaction_sees_the_smaller_window(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await small_agent(world, process)
    await talk(process, agent, 5)
    held = Held(say("A long while ago they spoke."))
    speaker.summary = lambda request: held
    import asyncio

    compacting = asyncio.create_task(compact(process, agent))
    await held.asked.wait()
    run = await process.start(agent, "Next.")
    held.released.set()
    await compacting
    await process.follow(run)
    assert summary_of(world.model.last.messages) == "A long while ago they spoke."
    assert world.model.last.messages[-1].text == "Next."


async def test_settings_of_request_override_those_of_agent(world: World, process: Process, speaker: Speaker) -> None:
    own = CompactionSettings("all", prompt="The agent's own.", clip_chars=40)
    agent = await small_agent(world, process, compaction_settings=own)
    await talk(process, agent, 5, "Hello")
    speaker.summary = lambda request: say("x" * 100)
    given = CompactionSettings("", sliding_window_percentage=0.2, prompt="Only now.", prompt_acknowledgement=True)
    result = await compact(process, agent, given)
    assert roles(world.window(agent).messages) == ["system", "summary"], "the mode stays the agent's"
    assert result.summary == "x" * 40 + CLIPPED
    request = speaker.summaries[0]
    assert [(m.role.value, m.text) for m in request.messages[:2]] == [
        ("system", "Only now."),
        ("assistant", "Understood. I will answer with the notes alone."),
    ]
    assert request.messages[2].text.startswith("user: 0. Hello\nassistant: Yes.\nuser: 1. Hello")
    again = await process.agents.get(ME, agent.id)
    assert again.compaction_settings == own


async def test_unknown_summary_model_is_refused(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(world, process)
    await talk(process, agent, 5)
    bad = CompactionSettings(model="unknown/none")
    before = world.window(agent)
    with pytest.raises(ModelUnknown):
        await compact(process, agent, bad)
    with pytest.raises(ModelUnknown):
        await process.agents.update(ME, None, agent.id, {"compaction_settings": bad})
    with pytest.raises(ModelUnknown):
        await small_agent(world, process, compaction_settings=bad)
    assert world.window(agent) == before
    with pytest.raises(NotFound):
        await process.compactions.compact(ME, None, agent.id, "conv-none", None, dry_run=False)


async def test_crash_at_any_point_leaves_old_or_new_window(world: World, process: Process) -> None:
    speaker = Speaker(world)
    agent = await small_agent(world, process)
    await talk(process, agent, 3, "Hello")
    await compact(process, agent, CompactionSettings("all"), dry_run=True)
    points = 0
    while True:
        name = f"r-{points}"
        first = world.process()
        await talk(first, agent, 2, "Hello")
        before = lines(world.window(agent).messages[1:])
        first.faults.calls.clear()
        first.faults.crashes_at = points
        count = len(speaker.summaries)
        try:
            await compact(first, agent, CompactionSettings("all"), key(name))
        except Crash:
            pass
        else:
            break
        finally:
            world.faults = type(world.faults)()
        now = lines(world.window(agent).messages[1:])
        assert now == before or roles(world.window(agent).messages) == ["system", "summary"], points
        again = world.process()
        await compact(again, agent, CompactionSettings("all"), key(name))
        assert roles(world.window(agent).messages) == ["system", "summary"], points
        assert len(speaker.summaries) - count <= 2
        await again.worker.stop()
        points += 1
    assert points > 8
    summaries = [row for row in world.recall.rows[agent.id] if row.role is Role.SUMMARY]
    assert len(summaries) == points + 1, "one for each, without duplicates"


async def test_transcript_contains_tool_calls_and_returns(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(world, process)
    speaker.turn = lambda request: (
        say("Nothing.") if request.messages[-1].tool_returns else call("archival_memory_search", query="zebra")
    )
    await process.send(agent, "Look.")
    await compact(process, agent, CompactionSettings("all"))
    text = speaker.summaries[0].messages[-1].text
    assert 'assistant calls archival_memory_search({"query": "zebra"})' in text
    assert "archival_memory_search returned (success): " in text
