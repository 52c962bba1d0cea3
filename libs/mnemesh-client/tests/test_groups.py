"""Groups and sleeptime of the Python client, over a whole mesh."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio
from mnemesh.agents.v1 import runs_pb2
from mnemesh_client import Agent, Mnemesh, approve, text_of
from mnemesh_client.errors import ApprovalRequired, InvalidArgument, NotFound
from mnemesh_kit.ids import new_id
from mnemesh_testkit.mesh.in_process import Mesh

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mnemesh]:
    """A client of a whole mesh with the built-in model."""
    async with Mesh(tmp_path_factory.mktemp("mesh"), in_memory=True) as mesh:
        yield mesh.client


@pytest_asyncio.fixture(loop_scope="module")
async def members(client: Mnemesh) -> tuple[Agent, Agent, Agent]:
    """Three agents."""
    first, second, third = [await client.agents.create(name, blocks={"human": ""}) for name in ("ada", "bob", "carl")]
    return first, second, third


async def test_group_is_created_found_listed_counted_and_deleted(
    client: Mnemesh, members: tuple[Agent, Agent, Agent]
) -> None:
    ada, bob, carl = members
    description = new_id("request")
    block = await client.blocks.create("rules", "Be brief.")

    group = await client.groups.create(
        [ada.id, bob.id],
        manager_type="dynamic",
        manager_agent_id=carl.id,
        max_turns=4,
        termination_token="OVER",
        description=description,
        shared_block_ids=[block.id],
        metadata={"team": 1},
    )

    assert (group.agent_ids, group.manager_agent_id, group.manager_type) == ([ada.id, bob.id], carl.id, "dynamic")
    assert group.proto.manager_config.dynamic.termination_token == "OVER"
    assert (await client.groups.find(description)).id == group.id == (await client.groups.find(group.id)).id
    assert [each.id async for each in client.groups.list(agent_id=carl.id)] == [group.id]
    assert await client.groups.count(agent_id=bob.id, manager_types=["dynamic"]) == 1
    assert await client.groups.count(agent_id=bob.id, manager_types=["round_robin"]) == 0
    assert "rules" in [each.label for each in (await carl.memory()).blocks]
    await group.delete()
    with pytest.raises(NotFound):
        await group.refresh()
    assert "rules" not in [each.label for each in (await carl.memory()).blocks]


async def test_update_changes_and_clears_fields_of_group_and_manager(client: Mnemesh) -> None:
    bob = await client.agents.create("bob", blocks={"human": ""})
    partners = [await client.agents.create("partner", type="sleeptime") for _ in range(2)]
    group = await client.groups.create(
        [partners[0].id], manager_type="sleeptime", manager_agent_id=bob.id, turns_counter=-1
    )
    assert group.proto.turns_counter == -1
    await group.update(turns_counter=2)
    assert group.proto.turns_counter == 2

    await group.update(
        agent_ids=[partner.id for partner in partners],
        description="Of bob.",
        sleeptime_agent_frequency=3,
        interval=timedelta(minutes=30),
    )
    assert (group.agent_ids, group.description) == ([partner.id for partner in partners], "Of bob.")
    manager = group.proto.manager_config.sleeptime
    assert (manager.sleeptime_agent_frequency, manager.interval.seconds) == (3, 1800)
    assert (group.is_sleeptime, manager.manager_agent_id) == (True, bob.id)
    assert [block.label for block in (await partners[1].memory()).blocks] == ["human"]

    await group.update(sleeptime_agent_frequency=None, metadata={"a": 1})
    manager = group.proto.manager_config.sleeptime
    assert (manager.HasField("sleeptime_agent_frequency"), manager.interval.seconds) == (False, 1800)
    assert group.proto.metadata == '{"a": 1}'
    found = await bob.sleeptime_group()
    assert found is not None
    assert found.id == group.id
    assert await partners[0].sleeptime_group() is None


async def test_wrong_fields_are_refused_before_the_call(client: Mnemesh, members: tuple[Agent, Agent, Agent]) -> None:
    with pytest.raises(InvalidArgument, match="Use one of round_robin"):
        await client.groups.create([members[0].id], manager_type="circle")
    with pytest.raises(InvalidArgument, match="A round_robin group has no field 'termination_token'"):
        await client.groups.create([members[0].id], termination_token="DONE")
    group = await client.groups.create([members[0].id])
    with pytest.raises(InvalidArgument, match="has no field 'interval'"):
        await group.update(interval=timedelta(minutes=2))
    with pytest.raises(InvalidArgument, match="exactly one"):
        await client.sleeptime.start(agent_id=members[0].id, group_id=group.id)


async def test_find_needs_a_unique_description(client: Mnemesh, members: tuple[Agent, Agent, Agent]) -> None:
    description = new_id("request")
    with pytest.raises(NotFound):
        await client.groups.find(description)
    groups = [await client.groups.create([members[0].id], description=description) for _ in range(2)]
    with pytest.raises(InvalidArgument) as refused:
        await client.groups.find(description)
    assert all(group.id in refused.value.message for group in groups)


async def test_run_of_a_group_is_listed_with_its_turns(client: Mnemesh, members: tuple[Agent, Agent, Agent]) -> None:
    ada, bob, _ = members
    group = await client.groups.create([ada.id, bob.id])

    replies = await group.ask("My name is Grace.")

    assert [reply.agent_name for reply in replies] == ["ada", "bob"]
    assert "Hello, ada!" in replies[1].text
    run = await anext(aiter(client.runs.list(group_id=group.id, origins=["client"])))
    turns = [turn async for turn in client.runs.children(run.id)]
    assert (run.agent_id, [turn.agent_id for turn in turns]) == ("", [ada.id, bob.id])
    assert [turn.id for turn in turns] == list(run.child_run_ids)
    assert {turn.id async for turn in client.runs.list(group_id=group.id, origins=["group"])} == set(run.child_run_ids)
    assert {each.id async for each in group.runs()} == {run.id, *run.child_run_ids}
    said = [text_of(message.content) async for message in group.messages(roles=["assistant"], agent_id=bob.id)]
    assert said[-1] == replies[1].text


async def test_approval_is_answered_as_soon_as_the_stream_has_it(client: Mnemesh) -> None:
    ada, bob = await client.agents.create("ada"), await client.agents.create("bob")
    await ada.set_tool_approval("archival_memory_insert")
    group = await client.groups.create([ada.id, bob.id])
    spoken: list[str] = []

    async for item in group.send("Remember that it rains."):
        for call in item.event.message.approval_request.tool_calls:
            await group.answer(item.agent_id, [approve(call.id)])
        if item.event.message.HasField("assistant"):
            spoken.append(item.agent_name)

    assert spoken == ["ada", "bob"]
    assert [passage.text async for passage in ada.passages()] == ["it rains."]


async def test_retry_continues_a_cancelled_run_with_the_first_turn_that_did_not_complete(client: Mnemesh) -> None:
    ada, bob = await client.agents.create("ada"), await client.agents.create("bob")
    await bob.set_tool_approval("archival_memory_insert")
    group = await client.groups.create([ada.id, bob.id])
    with pytest.raises(ApprovalRequired) as waiting:
        await group.ask("Remember that it rains.")
    await group.cancel()
    assert (await client.runs.wait(waiting.value.run_id)).status == runs_pb2.RUN_STATUS_CANCELLED
    await bob.set_tool_approval("archival_memory_insert", required=False)

    retried = await client.runs.retry(waiting.value.run_id)

    spoken = [item.agent_name async for item in group.follow(retried.id) if item.event.message.HasField("assistant")]
    assert spoken == ["bob"]
    assert [passage.text async for passage in ada.passages()] == ["it rains."], "the turn of ada is not repeated"


async def test_partner_is_started_by_turns_and_on_demand(client: Mnemesh) -> None:
    agent = await client.agents.create("grace", blocks={"human": ""}, enable_sleeptime=True)
    group = await agent.sleeptime_group()
    assert group is not None
    await group.update(sleeptime_agent_frequency=2)

    events = [event async for event in agent.send("I live in Paris.")]
    assert list(events[-1].usage.child_run_ids) == []
    events = [event async for event in agent.send("I have two cats.")]
    (run_id,) = events[-1].usage.child_run_ids
    assert (await client.runs.wait(run_id)).parent_run_id == events[0].run_id
    assert [run.id async for run in client.runs.list(agent_id=group.agent_ids[0], origins=["sleeptime"])] == [run_id]
    assert (await agent.preview_sleep()).message_count == 0
    assert await agent.sleep() == []

    await agent.ask("I like tea.")
    preview = await group.preview_sleep()
    assert ("I like tea." in preview.transcript, "Paris" in preview.transcript) == (True, False)
    (run,) = await group.sleep(waits=True)
    assert run.status == runs_pb2.RUN_STATUS_COMPLETED
    assert [block.value for block in (await agent.memory()).blocks if block.label == "human"] == [
        "I live in Paris.\nI have two cats.\nI like tea."
    ]


async def test_several_partners_write_nothing_twice(client: Mnemesh) -> None:
    agent = await client.agents.create("heidi", blocks={"human": ""}, enable_sleeptime=True)
    group = await agent.sleeptime_group()
    assert group is not None
    others = [await client.agents.create(f"partner {number}", type="sleeptime") for number in range(2)]
    await group.update(agent_ids=[*group.agent_ids, *(other.id for other in others)])
    await agent.ask("My name is Heidi. I live in Paris. I have two cats.")

    runs = await agent.sleep(waits=True)

    assert [run.agent_id for run in runs] == [*group.agent_ids]
    assert [run.status for run in runs] == [runs_pb2.RUN_STATUS_COMPLETED] * 3
    value = next(block.value for block in (await agent.memory()).blocks if block.label == "human")
    assert value == "Name: Heidi\nI live in Paris.\nI have two cats."


async def test_organization_limits_its_sleeptime_runs(client: Mnemesh) -> None:
    assert not (await client.sleeptime.settings()).HasField("max_concurrent_runs")
    assert (await client.sleeptime.update_settings(max_concurrent_runs=3)).max_concurrent_runs == 3
    assert (await client.sleeptime.settings()).max_concurrent_runs == 3
    await client.sleeptime.update_settings(max_concurrent_runs=None)
    assert not (await client.sleeptime.settings()).HasField("max_concurrent_runs")


async def test_request_id_repeats_no_change(client: Mnemesh, members: tuple[Agent, Agent, Agent]) -> None:
    ada = members[0]
    first, second = [await client.groups.create([ada.id], request_id="group-once") for _ in range(2)]
    assert first.id == second.id
    runs = [await first.start("Hello.", request_id="run-once") for _ in range(2)]
    assert runs[0].id == runs[1].id
    assert (await client.runs.wait(runs[0].id)).status == runs_pb2.RUN_STATUS_COMPLETED
    assert len(await first.cancel()) == 0
