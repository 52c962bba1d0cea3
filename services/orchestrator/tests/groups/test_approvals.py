"""Members that wait for an approval: the run of the group waits, names them, and continues with the answer."""

import asyncio

import pytest
from mnemesh_kit.failpoints import observed_by
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.model.events import MemberEvent, MemberTurnEnded
from mnemesh_orchestrator.model.groups import Group
from mnemesh_orchestrator.model.rules import RequiresApproval
from mnemesh_orchestrator.model.runs import CancelOutcome, RunFilter, RunStatus, StopReason
from mnemesh_types.messages import Approve, Deny

from ..support.groups import Cast, bodies, start, waiting
from ..support.model import call
from ..support.world import ME, Process, World, each, require_valid

ONE = PageQuery(1, ascending=False)


async def call_of(process: Process, cast: Cast, name: str) -> str:
    window = cast.world.window(cast.agents[name])
    return next(message.tool_calls[0].id for message in reversed(window.messages) if message.tool_calls)


async def guarded(cast: Cast, process: Process) -> Group:
    """Returns a group of Ada, Eve, whose notes need an approval, and Cleo."""
    await cast.join(process, "Eve", tool_rules=(RequiresApproval("archival_memory_insert"),))
    cast.says("Eve", call("archival_memory_insert", content="a note"), "Eve is done.")
    return await cast.group(process, "Ada", "Eve", "Cleo")


@pytest.mark.parametrize("approved", [True, False])
async def test_run_waits_for_an_approval_and_continues_with_the_answer(
    cast: Cast, process: Process, approved: bool
) -> None:
    group = await guarded(cast, process)
    run = await start(process, group, "Hello")
    following = asyncio.ensure_future(process.follow(run))
    approval = await waiting(process, run)
    assert approval.agent_id == cast.agents["Eve"].id
    (listed,) = (await process.runs.list(ME, RunFilter(group_id=group.id, active=True), ONE)).items
    assert (listed.id, listed.status, listed.waiting_for) == (run.id, RunStatus.RUNNING, (approval,))
    decision = Approve if approved else Deny
    answer = await process.answer(cast.agents["Eve"], decision(await call_of(process, cast, "Eve")))
    events = await following
    assert cast.shown(events)[3:10] == [
        "Eve MemberTurnStarted 2",
        "Eve approval_request",
        "Eve approval_response",
        "Eve tool_return",
        "Eve assistant: Eve is done.",
        "Eve MemberTurnEnded 2",
        "Cleo MemberTurnStarted 3",
    ]
    assert cast.turn("Cleo")[2] == "system: Eve: Eve is done."
    answering = await process.runs.get(ME, answer[0].run_id)
    asking = await process.runs.get(ME, approval.run_id)
    assert (answering.group_id, answering.lineage) == (group.id, asking.lineage)
    ended = await process.runs.get(ME, run.id)
    assert (ended.status, ended.waiting_for) == (RunStatus.COMPLETED, ())
    assert answering.id in ended.child_run_ids
    assert bodies(events, MemberTurnEnded)[1].usage == asking.usage + answering.usage


async def test_approval_that_nobody_answers_is_denied_and_the_round_goes_on(cast: Cast, process: Process) -> None:
    cast.world.approval_timeout = 60
    process = cast.world.process()
    group = await guarded(cast, process)
    run = await start(process, group)
    following = asyncio.ensure_future(process.follow(run))
    await waiting(process, run)
    cast.world.clock.advance(61)
    await process.approvals.expire()
    assert cast.shown(await following)[-3:] == ["Cleo MemberTurnEnded 3", "StopEvent", "UsageEvent"]


@pytest.mark.parametrize("by_group", [True, False])
async def test_cancellation_withdraws_the_approval(cast: Cast, process: Process, by_group: bool) -> None:
    group = await guarded(cast, process)
    run = await start(process, group)
    following = asyncio.ensure_future(process.follow(run))
    await waiting(process, run)
    filter_, ids = (RunFilter(group_id=group.id), ()) if by_group else (RunFilter(), (run.id,))
    outcomes = await process.approvals.cancel(ME, filter_, ids)
    assert outcomes[run.id] is CancelOutcome.CANCELLED
    events = await following
    assert bodies(events, MemberTurnEnded)[-1].stop_reason is StopReason.CANCELLED
    assert (await process.runs.get(ME, run.id)).status is RunStatus.CANCELLED
    assert "Cleo" not in cast.requests
    require_valid(cast.world.window(cast.agents["Eve"]).messages)
    cast.says("Eve", "Free again.")
    await process.send(cast.agents["Eve"], "Are you free?")
    assert cast.turn("Eve")[-1] == "assistant: Free again."


async def test_member_that_waits_for_an_approval_of_another_run_fails_alone(cast: Cast, process: Process) -> None:
    group = await guarded(cast, process)
    await process.send(cast.agents["Eve"], "Keep a note.")
    events = await process.follow(await start(process, group))
    ended = bodies(events, MemberTurnEnded)[1]
    assert ended.error is not None
    assert ended.error.reason == "PENDING_APPROVAL"
    assert bodies(events, MemberTurnEnded)[2].stop_reason is StopReason.END_TURN


async def test_resumed_run_continues_to_wait_and_is_not_stalled(cast: Cast, world: World, process: Process) -> None:
    group = await guarded(cast, process)
    run = await start(process, group)
    await waiting(process, run)
    for _ in range(12):
        await process.worker.stop()
        process = world.process()
        for conversation_id in await process.stores.leases.claimable(process.lease_renewer.instance_id):
            await process.worker.claim_and_run(conversation_id)
        await waiting(process, run)
    answered = asyncio.ensure_future(process.answer(cast.agents["Eve"], Approve(await call_of(process, cast, "Eve"))))
    events = await process.follow(run)
    await answered
    assert cast.shown(events)[-4:] == [
        "Cleo assistant: Cleo speaks.",
        "Cleo MemberTurnEnded 3",
        "StopEvent",
        "UsageEvent",
    ]
    assert cast.shown(events).count("Eve approval_request") == 1
    await process.worker.stop()


async def test_request_can_be_answered_as_soon_as_the_stream_has_it(cast: Cast, process: Process) -> None:
    group = await guarded(cast, process)

    async def slow_end(name: str) -> None:
        if name == "sql.write.before:runs.finish":
            await asyncio.sleep(0.1)

    with observed_by(slow_end):
        run = await start(process, group, "Hello")
        async for event in each(process.runs.follow(ME, run.id, 0, 30)):
            if isinstance(event.body, MemberEvent) and getattr(event.body.body, "kind", "") == "approval_request":
                await process.answer(cast.agents["Eve"], Approve(await call_of(process, cast, "Eve")))
    assert (await process.runs.get(ME, run.id)).status is RunStatus.COMPLETED
