"""Messages to groups: repeats, groups that cannot run, groups of other kinds, and the queue."""

import asyncio
from dataclasses import replace

import pytest
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import NotFound, RequestIdReused, Unimplemented
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.errors import ConversationBusy, GroupUnusable, OtidReused
from mnemesh_orchestrator.model.events import RunAccepted
from mnemesh_orchestrator.model.groups import ManagerConfig, ManagerType
from mnemesh_orchestrator.model.inputs import InputMessage, OnBusy, RunConfig
from mnemesh_orchestrator.model.runs import RunFilter, RunRequest, RunStatus
from mnemesh_types.messages import TextPart

from ..support.groups import Cast, send, start
from ..support.model import Held, say
from ..support.world import ME, Process, kinds

ALL = PageQuery(50, ascending=True)
KEY = RequestKey(ME.organization_id, "SendMessage", "r-1", "f")


@pytest.mark.parametrize("by_otid", [True, False])
@pytest.mark.parametrize("is_deleted", [True, False])
async def test_repeated_request_returns_the_first_run(
    cast: Cast, process: Process, by_otid: bool, is_deleted: bool
) -> None:
    group = await cast.group(process, "Ada", "Bob")
    given = {"otid": "o-1"} if by_otid else {"key": KEY}
    first = await send(process, group, "Hello", **given)
    if is_deleted:
        await process.stores.groups.remove(group.id)
    else:
        await process.groups.update(ME, None, group.id, {"manager": ManagerConfig(ManagerType.SWARM)})
    again = await send(process, group, "Hello", **given)
    accepted = again[0].body
    assert isinstance(accepted, RunAccepted)
    assert (accepted.replayed, again[0].run_id) == (True, first[0].run_id)
    assert [event for event in again if event.sequence] == [event for event in first if event.sequence]
    other = {"otid": "o-1"} if by_otid else {"key": replace(KEY, fingerprint="g")}
    with pytest.raises(OtidReused if by_otid else RequestIdReused):
        await send(process, group, "Other", **other)


async def test_groups_that_cannot_run(cast: Cast, process: Process) -> None:
    empty = await cast.group(process)
    with pytest.raises(GroupUnusable) as raised:
        await send(process, empty)
    assert (raised.value.reason, raised.value.metadata["resource_id"]) == ("GROUP_UNUSABLE", empty.id)
    swarm = await cast.group(process, "Ada", kind=ManagerType.SWARM)
    with pytest.raises(Unimplemented):
        await start(process, swarm)
    led = await cast.group(process, "Ada", kind=ManagerType.SUPERVISOR, by="Bob")
    await process.lifecycle.delete(ME, cast.agents["Bob"].id)
    with pytest.raises(GroupUnusable):
        await start(process, led)
    hello = [InputMessage((TextPart("Hello"),))]
    stranger = Principal("org-of-others", "somebody")
    with pytest.raises(NotFound):
        await process.runs.start(stranger, None, RunRequest("", "", hello, RunConfig(), group_id=led.id))
    assert (await process.runs.list(ME, RunFilter(), ALL)).items == ()


async def test_message_to_a_sleeptime_group_is_a_turn_of_its_manager(cast: Cast, process: Process) -> None:
    group = await cast.group(process, "Bob", kind=ManagerType.SLEEPTIME, by="Ada")
    events = await send(process, group, "Hello")
    assert kinds(events) == ["assistant", "StopEvent", "UsageEvent"]
    run = await process.runs.get(ME, events[0].run_id)
    assert (run.agent_id, run.group_id, run.plan) == (cast.agents["Ada"].id, group.id, None)


async def test_runs_of_a_group_wait_for_one_another(cast: Cast, process: Process) -> None:
    held = Held(say("First."))
    cast.says("Ada", held, "Second.")
    group = await cast.group(process, "Ada", "Bob")
    first = await start(process, group, "One")
    await held.asked.wait()
    second = await start(process, group, "Two")
    with pytest.raises(ConversationBusy) as raised:
        await start(process, group, "Three", on_busy=OnBusy.REJECT)
    assert raised.value.metadata["run_id"] == first.id
    assert (await process.runs.get(ME, second.id)).status is RunStatus.CREATED
    held.released.set()
    await process.follow(second)
    assert cast.turn("Bob") == [
        "user: One",
        "system: Ada: First.",
        "assistant: Bob speaks.",
        "user: Two",
        "system: Ada: Second.",
        "assistant: Bob speaks.",
    ]


async def test_agents_of_several_groups_take_part_in_all_their_runs(cast: Cast, process: Process) -> None:
    pairs = [("Ada", "Bob"), ("Bob", "Cleo"), ("Cleo", "Ada")]
    groups = [await cast.group(process, *pair) for pair in pairs]
    runs = [await start(process, group, "Hello") for group in groups]
    await asyncio.gather(*(process.follow(run) for run in runs))
    ended = [await process.runs.get(ME, run.id) for run in runs]
    assert [run.status for run in ended] == [RunStatus.COMPLETED] * 3
    assert [run.step_count for run in ended] == [2, 2, 2]


async def test_deleted_run_keeps_its_turns(cast: Cast, process: Process) -> None:
    group = await cast.group(process, "Ada", "Bob")
    run = await process.runs.get(ME, (await send(process, group))[0].run_id)
    await process.runs.delete(ME, run.id)
    with pytest.raises(NotFound):
        await process.runs.get(ME, run.id)
    for child_id in run.child_run_ids:
        assert (await process.runs.get(ME, child_id)).status is RunStatus.COMPLETED
