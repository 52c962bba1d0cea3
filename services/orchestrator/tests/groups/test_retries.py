"""Retries: the turns that completed are kept, and the first that did not is retried with its input."""

import pytest
from mnemesh_orchestrator.errors import RunEnded
from mnemesh_orchestrator.llm.errors import ProviderPaymentRequired
from mnemesh_orchestrator.model.events import MemberTurnEnded
from mnemesh_orchestrator.model.groups import ManagerType
from mnemesh_orchestrator.model.rules import RequiresApproval
from mnemesh_orchestrator.model.runs import RunFilter, RunStatus, StopReason

from ..support.groups import Cast, bodies, send, start, waiting
from ..support.model import Held, call, say
from ..support.world import ME, Process, require_valid

BROKE = ProviderPaymentRequired("Out of credits.", provider="scripted")


async def test_cancelled_run_is_continued(cast: Cast, process: Process) -> None:
    held = Held(say("Never said."))
    cast.says("Bob", held, "Bob at last.")
    group = await cast.group(process, "Ada", "Bob", "Cleo")
    run = await start(process, group)
    await held.asked.wait()
    await process.approvals.cancel(ME, RunFilter(), (run.id,))
    retry = await process.runs.retry(ME, None, run.id)
    assert (retry.retried_run_ids, retry.group_id, retry.agent_id) == ((run.id,), group.id, "")
    events = await process.follow(retry)
    assert cast.shown(events) == [
        "Bob MemberTurnStarted 2",
        "Bob assistant: Bob at last.",
        "Bob MemberTurnEnded 2",
        "Cleo MemberTurnStarted 3",
        "Cleo assistant: Cleo speaks.",
        "Cleo MemberTurnEnded 3",
        "StopEvent",
        "UsageEvent",
    ]
    assert cast.turn("Ada") == ["user: Hello", "assistant: Ada speaks."]
    assert cast.turn("Bob") == ["user: Hello", "system: Ada: Ada speaks.", "assistant: Bob at last."]
    assert cast.turn("Cleo") == [
        "user: Hello",
        "system: Ada: Ada speaks.",
        "system: Bob: Bob at last.",
        "assistant: Cleo speaks.",
    ]
    with pytest.raises(RunEnded):
        await process.runs.retry(ME, None, run.id)


async def test_failed_turns_are_retried_until_they_complete(cast: Cast, process: Process) -> None:
    cast.says("Ada", BROKE, BROKE, "Ada at last.")
    cast.says("Bob", BROKE, BROKE, "Bob at last.")
    group = await cast.group(process, "Ada", "Bob")
    run = (await send(process, group, "Hello"))[0].run_id
    for _ in range(2):
        events = await process.follow(await process.runs.retry(ME, None, run))
    assert (await process.runs.get(ME, events[0].run_id)).status is RunStatus.COMPLETED
    assert cast.turn("Ada") == ["user: Hello", "assistant: Ada at last."]
    # Bob's first attempt began when Ada had said nothing. A retry has the input of the first attempt.
    assert cast.turn("Bob") == ["user: Hello", "assistant: Bob at last."]
    for name in ("Ada", "Bob"):
        rows = cast.world.recall.rows[cast.agents[name].id]
        assert len(rows) == len(cast.world.window(cast.agents[name]).messages)


async def test_withdrawn_approval_is_asked_for_again(cast: Cast, process: Process) -> None:
    await cast.join(process, "Eve", tool_rules=(RequiresApproval("archival_memory_insert"),))
    cast.says("Eve", call("archival_memory_insert", content="a note"), "Without a note.")
    group = await cast.group(process, "Ada", "Eve")
    run = await start(process, group)
    await waiting(process, run)
    await process.approvals.cancel(ME, RunFilter(), (run.id,))
    events = await process.follow(await process.runs.retry(ME, None, run.id))
    assert cast.shown(events)[:3] == [
        "Eve MemberTurnStarted 2",
        "Eve assistant: Without a note.",
        "Eve MemberTurnEnded 2",
    ]
    assert [text for text in cast.turn("Eve") if text == "user: Hello"] == ["user: Hello"]
    require_valid(cast.world.window(cast.agents["Eve"]).messages)


async def test_selection_that_failed_is_retried(cast: Cast, process: Process) -> None:
    cast.says("Ada", "Bob", BROKE, "DONE!")
    group = await cast.group(process, "Bob", "Cleo", kind=ManagerType.DYNAMIC, by="Ada")
    run = (await send(process, group, "Hello"))[0].run_id
    assert (await process.runs.get(ME, run)).stop_reason is StopReason.INSUFFICIENT_CREDITS
    events = await process.follow(await process.runs.retry(ME, None, run))
    assert cast.shown(events) == [
        "Ada MemberTurnStarted 3",
        "Ada assistant: DONE!",
        "Ada MemberTurnEnded 3",
        "StopEvent",
        "UsageEvent",
    ]
    assert bodies(events, MemberTurnEnded)[0].stop_reason is StopReason.END_TURN
    assert len(cast.requests["Bob"]) == 1


async def test_selection_without_a_speaker_is_asked_for_again(cast: Cast, process: Process) -> None:
    cast.says("Ada", "Nobody", "?", "Nobody", "Nobody", "Bob", "DONE!")
    group = await cast.group(process, "Bob", "Cleo", kind=ManagerType.DYNAMIC, by="Ada")
    run = (await send(process, group, "Hello"))[0].run_id
    assert (await process.runs.get(ME, run)).stop_reason is StopReason.INVALID_LLM_RESPONSE
    events = await process.follow(await process.runs.retry(ME, None, run))
    assert [event for event in cast.shown(events) if "assistant" in event] == [
        "Ada assistant: Nobody",
        "Ada assistant: Bob",
        "Bob assistant: Bob speaks.",
        "Ada assistant: DONE!",
    ]
    assert cast.shown(events)[0] == "Ada MemberTurnStarted 4"
