"""The events of a run of a group name the agent that they come from."""

from typing import TYPE_CHECKING, Any

import pytest
from mnemesh.agents.v1 import agents_pb2, groups_pb2, runs_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import ApprovalRequired, Group, Mnemesh, RunFailed
from mnemesh_client.inputs import text_part
from mnemesh_kit.ids import new_id

if TYPE_CHECKING:
    from mnemesh_testkit.timeouts import Face
from mnemesh_testkit.mesh.fake_mesh import FakeMesh

GROUP = "group-11111111-1111-4111-8111-111111111111"
ADA, BOB = new_id("agent"), new_id("agent")


@pytest.fixture
def face() -> "Face":
    """The asynchronous client, to which the group belongs."""
    return "async"


@pytest.fixture
def group(mnemesh: Mnemesh) -> Group:
    """A group whose runs the fake orchestrator plays."""
    return Group(mnemesh.groups, groups_pb2.Group(id=GROUP))


async def test_each_event_names_its_speaker(mesh: FakeMesh, group: Group) -> None:
    mesh.orchestrator.group_events[GROUP] = [*turn(1, ADA, "ada", "Hello."), *turn(2, BOB, "bob", "Hi."), *ended()]
    mesh.orchestrator.break_after = [4]

    items = [item async for item in group.send("hello")]

    speakers = [(item.agent_name, item.agent_id) for item in items if item.event.HasField("message")]
    assert speakers == [("ada", ADA), ("bob", BOB)]
    assert [item.event.sequence for item in items[1:]] == [1, 2, 3, 4, 5, 6, 7, 8], "the stream broke after four events"
    assert {item.agent_id for item in items[-2:]} == {""}


async def test_replies_leave_out_the_selection_of_speakers(mesh: FakeMesh, group: Group) -> None:
    selection = turn(1, ADA, "ada", "bob", is_selection=True)
    mesh.orchestrator.group_events[GROUP] = [*selection, *turn(2, BOB, "bob", "Hi."), *ended()]

    assert [(reply.agent_name, reply.text) for reply in await group.ask("hello")] == [("bob", "Hi.")]


async def test_name_of_a_turn_that_began_before_the_stream_is_read(
    mesh: FakeMesh, mnemesh: Mnemesh, group: Group
) -> None:
    agent = await mnemesh.agents.create("ada", model="mnemesh/rehearsal")
    mesh.orchestrator.group_events[GROUP] = [
        *turn(1, agent.id, "ada", "Hello."),
        *turn(2, BOB, "bob", "Hi.")[1:],
        *ended(),
    ]
    run_id = (await anext(aiter(group.send("hello")))).event.run_id

    items = [item async for item in group.follow(run_id, starting_after=1)]

    names = [item.agent_name for item in items if item.event.HasField("message")]
    assert names == ["ada", BOB], "an agent that was deleted is named by its id"


async def test_ask_reports_a_failed_run_and_a_pending_approval(mesh: FakeMesh, group: Group) -> None:
    error = runs_pb2.RunError(reason="PROVIDER_AUTH", message="Bad key.")
    mesh.orchestrator.group_events[GROUP] = [runs_pb2.RunEvent(error=runs_pb2.ErrorEvent(error=error)), *ended()]
    with pytest.raises(RunFailed) as failure:
        await group.ask("hello")
    assert failure.value.reason == "PROVIDER_AUTH"

    call = message_pb2.ToolCall(id="call_1", name="launch", arguments="{}")
    request = runs_pb2.MessageEvent(approval_request=runs_pb2.ApprovalRequestMessage(tool_calls=[call]))
    waiting = [turn(1, ADA, "ada", "")[0], runs_pb2.RunEvent(agent_id=ADA, child_run_id="run-1", message=request)]
    mesh.orchestrator.group_events[GROUP] = waiting
    with pytest.raises(ApprovalRequired, match="ada waits for an approval") as pending:
        await group.ask("hello")
    assert (pending.value.agent_id, pending.value.reason) == (ADA, "PENDING_APPROVAL")


def turn(number: int, agent_id: str, name: str, text: str, *, is_selection: bool = False) -> list[runs_pb2.RunEvent]:
    """Returns the events of the turn of a member that says one text."""
    started = runs_pb2.MemberTurnStarted(number=number, agent_name=name, is_selection=is_selection)
    said = runs_pb2.MessageEvent(assistant=runs_pb2.AssistantMessage(content=[text_part(text)]))
    stopped = runs_pb2.MemberTurnEnded(number=number, stop_reason=agents_pb2.STOP_REASON_END_TURN)
    bodies: list[dict[str, Any]] = [{"member_turn_started": started}, {"message": said}, {"member_turn_ended": stopped}]
    return [runs_pb2.RunEvent(agent_id=agent_id, child_run_id=f"run-{number}", **body) for body in bodies]


def ended() -> list[runs_pb2.RunEvent]:
    """Returns the last events of a run."""
    stop = runs_pb2.StopEvent(reason=agents_pb2.STOP_REASON_END_TURN, status=runs_pb2.RUN_STATUS_COMPLETED)
    return [runs_pb2.RunEvent(stop=stop), runs_pb2.RunEvent(usage=runs_pb2.UsageEvent())]
