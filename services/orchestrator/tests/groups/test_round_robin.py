"""Round robin: the members speak in order, and receive what the others said since their last turn."""

from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.model.events import MemberTurnEnded, UsageEvent
from mnemesh_orchestrator.model.runs import RunFilter, RunOrigin, RunStatus, StopReason
from mnemesh_types.messages import Role

from ..support.groups import Cast, bodies, send
from ..support.model import USAGE
from ..support.world import ME, Process


async def test_members_speak_in_order_and_hear_one_another(cast: Cast, process: Process) -> None:
    group = await cast.group(process, "Ada", "Bob", "Cleo", max_turns=4)
    events = await send(process, group, "Hello", stream_tokens=True)
    assert cast.shown(events) == [
        "Ada MemberTurnStarted 1",
        "Ada assistant: Ada speaks.",
        "Ada MemberTurnEnded 1",
        "Bob MemberTurnStarted 2",
        "Bob assistant: Bob speaks.",
        "Bob MemberTurnEnded 2",
        "Cleo MemberTurnStarted 3",
        "Cleo assistant: Cleo speaks.",
        "Cleo MemberTurnEnded 3",
        "Ada MemberTurnStarted 4",
        "Ada assistant: Ada speaks.",
        "Ada MemberTurnEnded 4",
        "StopEvent",
        "UsageEvent",
    ]
    assert cast.turn("Ada") == [
        "user: Hello",
        "assistant: Ada speaks.",
        "system: Bob: Bob speaks.",
        "system: Cleo: Cleo speaks.",
        "assistant: Ada speaks.",
    ]
    assert cast.turn("Cleo") == [
        "user: Hello",
        "system: Ada: Ada speaks.",
        "system: Bob: Bob speaks.",
        "assistant: Cleo speaks.",
    ]
    heard = cast.world.turn(cast.agents["Bob"])[1]
    assert (heard.role, heard.name, heard.sender_id, heard.group_id) == (
        Role.SYSTEM,
        "Ada",
        cast.agents["Ada"].id,
        group.id,
    )
    assert {end.stop_reason for end in bodies(events, MemberTurnEnded)} == {StopReason.END_TURN}
    run = await process.runs.get(ME, events[0].run_id)
    children = await process.runs.list(ME, RunFilter(parent_run_id=run.id), PageQuery(9, ascending=True))
    assert [child.agent_id for child in children.items] == list(cast.ids("Ada", "Bob", "Cleo", "Ada"))
    assert {(child.lineage.origin, child.group_id) for child in children.items} == {(RunOrigin.GROUP, group.id)}
    (usage,) = bodies(events, UsageEvent)
    assert usage.usage == USAGE + USAGE + USAGE + USAGE
    assert (usage.step_count, usage.child_run_ids) == (4, tuple(child.id for child in children.items))
    assert (run.status, run.agent_id, run.group_id) == (RunStatus.COMPLETED, "", group.id)
    assert (run.usage, run.child_run_ids) == (usage.usage, usage.child_run_ids)
    again = await process.follow(run)
    assert [event for event in again if event.sequence] == [event for event in events if event.sequence]


async def test_member_that_speaks_again_without_words_of_others_is_told_so(cast: Cast, process: Process) -> None:
    group = await cast.group(process, "Ada", max_turns=2)
    await send(process, group, "Hello")
    assert cast.turn("Ada") == [
        "user: Hello",
        "assistant: Ada speaks.",
        "system: It is your turn again. No other member has spoken since your last turn.",
        "assistant: Ada speaks.",
    ]
