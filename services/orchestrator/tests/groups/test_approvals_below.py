"""Approvals of agents below the top run: its stream shows them, every run above names them, and an answer frees all."""

import asyncio
from collections.abc import Sequence

import pytest
from mnemesh_orchestrator.model.events import MemberEvent, MessageEvent, RunEvent
from mnemesh_orchestrator.model.groups import ManagerType
from mnemesh_orchestrator.model.rules import RequiresApproval
from mnemesh_orchestrator.model.runs import MemberApproval, Run, RunFilter, RunStatus
from mnemesh_types.messages import Approve, Deny

from ..loop.correspondents import ASK, BY_TAGS, TO_GROUP
from ..support.faults import Faults
from ..support.groups import Cast, start
from ..support.model import Item, call, say
from ..support.world import ME, Process, World, crashed, each, require_valid

NOTE = call("archival_memory_insert", content="a note")


def requests(events: Sequence[RunEvent]) -> list[MemberEvent]:
    """Returns the requests of other agents in a stream."""
    return [
        body
        for body in (event.body for event in events)
        if isinstance(body, MemberEvent)
        and isinstance(body.body, MessageEvent)
        and body.body.kind == "approval_request"
    ]


async def gated(cast: Cast, process: Process, *names: str, tags: tuple[str, ...] = ()) -> None:
    """Creates agents whose notes need an approval."""
    for name in names:
        await cast.join(process, name, tool_rules=(RequiresApproval("archival_memory_insert"),), tags=tags)
        cast.says(name, NOTE, f"{name} is done.")


def asks(cast: Cast, name: str) -> Item:
    return call(ASK, message="Keep a note.", other_agent_id=cast.agents[name].id)


class Following:
    """The events of a run, as a client that follows it gets them."""

    def __init__(self, process: Process, run: Run) -> None:
        self.events: list[RunEvent] = []
        self._process, self._run = process, run
        self._news = asyncio.Event()
        self.task = asyncio.ensure_future(self._follow())

    async def _follow(self) -> None:
        async for event in each(self._process.runs.follow(ME, self._run.id, 0, 30)):
            self.events.append(event)
            self._news.set()

    async def requests(self, count: int) -> list[MemberEvent]:
        """Waits until the stream has shown so many requests of other agents."""
        while len(found := requests(self.events)) < count:
            await self._news.wait()
            self._news.clear()
        return found


async def answer(process: Process, event: MemberEvent, *, approved: bool = True) -> None:
    """Answers a request as a client does: with what the event has."""
    assert isinstance(event.body, MessageEvent)
    agent = await process.agents.get(ME, event.agent_id)
    decision = Approve if approved else Deny
    decisions = [decision(item.id) for item in event.body.tool_calls]
    await process.answer(agent, *decisions, request=event.body.message_id)


async def waits(process: Process, run_id: str) -> tuple[MemberApproval, ...]:
    return (await process.runs.get(ME, run_id)).waiting_for


def named(event: MemberEvent) -> MemberApproval:
    assert isinstance(event.body, MessageEvent)
    return MemberApproval(event.agent_id, event.run_id, event.body.message_id)


@pytest.mark.parametrize("approved", [True, False])
async def test_agent_that_waits_for_a_reply_shows_the_approval_of_the_recipient(
    cast: Cast, process: Process, approved: bool
) -> None:
    await gated(cast, process, "Eve")
    await cast.join(process, "Ann", tool_names=(ASK,))
    cast.says("Ann", asks(cast, "Eve"), "Ann knows.")
    run = await process.start(cast.agents["Ann"])
    following = Following(process, run)
    (request,) = await following.requests(1)
    assert request.agent_id == cast.agents["Eve"].id
    assert (await process.runs.get(ME, request.run_id)).agent_id == request.agent_id
    assert await waits(process, run.id) == (named(request),)
    await answer(process, request, approved=approved)
    await following.task
    assert len(requests(following.events)) == 1
    ended = await process.runs.get(ME, run.id)
    assert (ended.status, ended.waiting_for) == (RunStatus.COMPLETED, ())
    returned = cast.world.turn(cast.agents["Ann"])[2].tool_returns[0]
    assert "Eve is done." in returned.text
    require_valid(cast.world.window(cast.agents["Ann"]).messages)


async def test_approval_two_agents_below_is_shown_by_every_run_above(cast: Cast, process: Process) -> None:
    await gated(cast, process, "Eve")
    await cast.join(process, "Ben", "Ann", tool_names=(ASK,))
    cast.says("Ben", asks(cast, "Eve"), "Ben knows.")
    cast.says("Ann", asks(cast, "Ben"), "Ann knows.")
    run = await process.start(cast.agents["Ann"])
    following = Following(process, run)
    (request,) = await following.requests(1)
    middle = (await process.runs.get(ME, request.run_id)).lineage.parent_run_id or ""
    assert request.agent_id == cast.agents["Eve"].id
    assert await waits(process, run.id) == await waits(process, middle) == (named(request),)
    assert [named(event) for event in requests(await stored(process, middle))] == [named(request)]
    await answer(process, request)
    await following.task
    assert len(requests(following.events)) == 1
    assert (await process.runs.get(ME, run.id)).status is RunStatus.COMPLETED


async def stored(process: Process, run_id: str) -> list[RunEvent]:
    return list(await process.stores.runs.events(run_id, 0, 1_000))


async def test_every_agent_that_matches_tags_shows_its_approval(cast: Cast, process: Process) -> None:
    await gated(cast, process, "Eve", "Max", tags=("notes",))
    await cast.join(process, "Ann", tool_names=(BY_TAGS,))
    cast.says("Ann", call(BY_TAGS, message="Keep a note.", match_all=["notes"], match_some=[]), "Ann knows.")
    run = await process.start(cast.agents["Ann"])
    following = Following(process, run)
    found = await following.requests(2)
    assert {event.agent_id for event in found} == set(cast.ids("Eve", "Max"))
    assert set(await waits(process, run.id)) == {named(event) for event in found}
    for event in found:
        await answer(process, event)
    await following.task
    assert len(requests(following.events)) == 2
    assert (await process.runs.get(ME, run.id)).status is RunStatus.COMPLETED


async def test_second_approval_of_an_answered_turn_is_shown_too(cast: Cast, process: Process) -> None:
    await gated(cast, process, "Eve")
    cast.says("Eve", NOTE, NOTE, "Eve is done.")
    await cast.join(process, "Ann", tool_names=(ASK,))
    cast.says("Ann", asks(cast, "Eve"), "Ann knows.")
    following = Following(process, await process.start(cast.agents["Ann"]))
    (first,) = await following.requests(1)
    await answer(process, first)
    _, second = await following.requests(2)
    assert second.run_id != first.run_id
    await answer(process, second)
    await following.task
    assert len(requests(following.events)) == 2


async def test_supervisor_shows_the_approval_of_a_member(cast: Cast, process: Process) -> None:
    await gated(cast, process, "Eve")
    await cast.join(process, "Ada", "Sam")
    cast.says("Sam", call(TO_GROUP, message="Keep a note."), "All is kept.")
    group = await cast.group(process, "Ada", "Eve", kind=ManagerType.SUPERVISOR, by="Sam")
    run = await start(process, group, "Hello")
    following = Following(process, run)
    (request,) = await following.requests(1)
    asking = await process.runs.get(ME, request.run_id)
    assert request.agent_id == asking.agent_id == cast.agents["Eve"].id
    turn = asking.lineage.parent_run_id or ""
    assert turn != run.id
    assert await waits(process, run.id) == await waits(process, turn) == (named(request),)
    await answer(process, request)
    await following.task
    assert len(requests(following.events)) == 1
    assert cast.shown(following.events)[-4:] == [
        "Sam assistant: All is kept.",
        "Sam MemberTurnEnded 1",
        "StopEvent",
        "UsageEvent",
    ]


@pytest.mark.parametrize("kind", [ManagerType.ROUND_ROBIN, ManagerType.DYNAMIC])
async def test_member_that_waits_for_a_gated_agent_shows_it_in_the_run_of_the_group(
    cast: Cast, process: Process, kind: ManagerType
) -> None:
    await gated(cast, process, "Eve")
    await cast.join(process, "Ada", tool_names=(ASK,))
    await cast.join(process, "Sam")
    cast.says("Ada", asks(cast, "Eve"), "Ada knows.")
    cast.says("Sam", "Ada", "DONE!")
    by = "Sam" if kind is ManagerType.DYNAMIC else ""
    group = await cast.group(process, "Ada", kind=kind, by=by)
    run = await start(process, group, "Hello")
    following = Following(process, run)
    (request,) = await following.requests(1)
    assert request.agent_id == cast.agents["Eve"].id
    assert await waits(process, run.id) == (named(request),)
    await answer(process, request)
    await following.task
    assert len(requests(following.events)) == 1
    assert "Ada assistant: Ada knows." in cast.shown(following.events)
    assert (await process.runs.get(ME, run.id)).status is RunStatus.COMPLETED


async def test_cancellation_of_the_top_run_withdraws_an_approval_two_agents_below(cast: Cast, process: Process) -> None:
    await gated(cast, process, "Eve")
    await cast.join(process, "Ben", "Ann", tool_names=(ASK,))
    cast.says("Ben", asks(cast, "Eve"), "Ben knows.")
    cast.says("Ann", asks(cast, "Ben"), "Ann knows.")
    run = await process.start(cast.agents["Ann"])
    following = Following(process, run)
    await following.requests(1)
    await process.approvals.cancel(ME, RunFilter(), (run.id,))
    await following.task
    assert (await process.runs.get(ME, run.id)).status is RunStatus.CANCELLED
    assert (await process.outcome(cast.agents["Ben"])).status is RunStatus.CANCELLED
    assert await process.agents.list_pending_approvals(ME, [cast.agents["Eve"]]) == {}
    for name in ("Ann", "Ben", "Eve"):
        require_valid(cast.world.window(cast.agents[name]).messages)


async def test_approval_is_shown_once_after_a_crash_of_the_process_that_waits(world: World) -> None:
    first = world.process()
    cast = Cast(world)
    await gated(cast, first, "Eve")
    await cast.join(first, "Ann", tool_names=(ASK,))
    cast.says("Ann", asks(cast, "Eve"), "Ann knows.")
    run = await first.start(cast.agents["Ann"])
    following = Following(first, run)
    await following.requests(1)
    following.task.cancel()
    first.faults.has_crashed = True
    first.worker.interrupt(run.id)
    await crashed(first)
    world.faults = Faults()
    second = world.process()
    recovering = asyncio.ensure_future(second.recover())
    again = Following(second, run)
    (request,) = await again.requests(1)
    await answer(second, request)
    await again.task
    await recovering
    assert len(requests(again.events)) == 1
    assert (await second.runs.get(ME, run.id)).status is RunStatus.COMPLETED
    await second.worker.stop()


async def test_reply_without_an_approval_shows_no_request(cast: Cast, process: Process) -> None:
    await cast.join(process, "Eve")
    await cast.join(process, "Ann", tool_names=(ASK,))
    cast.says("Ann", asks(cast, "Eve"), "Ann knows.")
    cast.says("Eve", say("Here."))
    assert requests(await process.send(cast.agents["Ann"])) == []
