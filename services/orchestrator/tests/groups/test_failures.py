"""Turns that fail: the others are told nothing, the round goes on, and the group stays usable."""

import asyncio

from mnemesh_orchestrator.llm.errors import ProviderPaymentRequired
from mnemesh_orchestrator.model.agents import AgentType
from mnemesh_orchestrator.model.events import ErrorEvent, MemberTurnEnded
from mnemesh_orchestrator.model.groups import ManagerType
from mnemesh_orchestrator.model.runs import RunStatus, StopReason

from ..support.groups import Cast, bodies, send
from ..support.model import Held, say
from ..support.world import ME, Process

BROKE = ProviderPaymentRequired("Out of credits.", provider="scripted")


async def test_failed_turn_is_reported_and_the_round_goes_on(cast: Cast, process: Process) -> None:
    cast.says("Bob", BROKE, "Bob is back.")
    group = await cast.group(process, "Ada", "Bob", "Cleo", max_turns=5)
    events = await send(process, group, "Hello")
    ends = bodies(events, MemberTurnEnded)
    assert [end.stop_reason for end in ends] == [
        StopReason.END_TURN,
        StopReason.INSUFFICIENT_CREDITS,
        *[StopReason.END_TURN] * 3,
    ]
    assert ends[1].error is not None
    assert (ends[1].error.reason, ends[1].error.message) == ("PROVIDER_PAYMENT_REQUIRED", "Out of credits.")
    assert bodies(events, ErrorEvent) == []
    run = await process.runs.get(ME, events[0].run_id)
    assert (run.status, run.stop_reason) == (RunStatus.COMPLETED, StopReason.END_TURN)
    assert cast.turn("Cleo")[:2] == ["user: Hello", "system: Ada: Ada speaks."]
    # The input of the turn that failed is not in Bob's window, so his next turn has it again.
    assert cast.turn("Bob") == [
        "user: Hello",
        "system: Ada: Ada speaks.",
        "system: Cleo: Cleo speaks.",
        "system: Ada: Ada speaks.",
        "assistant: Bob is back.",
    ]


async def test_run_fails_if_every_turn_fails(cast: Cast, process: Process) -> None:
    for name in cast.agents:
        cast.says(name, BROKE)
    group = await cast.group(process, "Ada", "Bob", "Cleo")
    events = await send(process, group)
    assert [end.stop_reason for end in bodies(events, MemberTurnEnded)] == [StopReason.INSUFFICIENT_CREDITS] * 3
    (error,) = bodies(events, ErrorEvent)
    assert error.error.reason == "PROVIDER_PAYMENT_REQUIRED"
    run = await process.runs.get(ME, events[0].run_id)
    assert (run.status, run.stop_reason) == (RunStatus.FAILED, StopReason.INSUFFICIENT_CREDITS)
    for name in cast.agents:
        cast.says(name, "Back.")
    events = await send(process, group)
    assert (await process.runs.get(ME, events[0].run_id)).status is RunStatus.COMPLETED


async def test_run_fails_with_the_turn_of_its_manager(cast: Cast, process: Process) -> None:
    cast.says("Ada", BROKE)
    group = await cast.group(process, "Bob", "Cleo", kind=ManagerType.DYNAMIC, by="Ada")
    events = await send(process, group)
    assert cast.shown(events) == [
        "Ada MemberTurnStarted 1",
        "Ada MemberTurnEnded 1",
        "ErrorEvent",
        "StopEvent",
        "UsageEvent",
    ]
    assert (await process.runs.get(ME, events[0].run_id)).error is not None


async def test_member_without_tools_fails_alone(cast: Cast, process: Process) -> None:
    await cast.join(process, "Eve", kind=AgentType.MEMGPT_V2, include_base_tools=False)
    group = await cast.group(process, "Ada", "Eve")
    events = await send(process, group)
    ended = bodies(events, MemberTurnEnded)[1]
    assert (ended.stop_reason, ended.error.reason) == (StopReason.NO_TOOL_CALL, "FAILED_PRECONDITION")
    assert (await process.runs.get(ME, events[0].run_id)).status is RunStatus.COMPLETED


async def test_member_deleted_before_and_during_its_turn(cast: Cast, process: Process) -> None:
    held = Held(say("Ada speaks."))
    cast.says("Ada", held)
    group = await cast.group(process, "Ada", "Bob", "Cleo")
    sending = asyncio.ensure_future(send(process, group))
    await held.asked.wait()
    await process.lifecycle.delete(ME, cast.agents["Bob"].id)
    await process.lifecycle.delete(ME, cast.agents["Ada"].id)
    events = await sending
    ends = bodies(events, MemberTurnEnded)
    assert [end.error and end.error.reason for end in ends] == ["NOT_FOUND", "NOT_FOUND", None]
    assert cast.shown(events)[-5:] == [
        "Cleo MemberTurnStarted 3",
        "Cleo assistant: Cleo speaks.",
        "Cleo MemberTurnEnded 3",
        "StopEvent",
        "UsageEvent",
    ]
