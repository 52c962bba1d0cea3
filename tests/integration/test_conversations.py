"""Conversations of one agent across the services: separate windows, shared memory, independent forks."""

import asyncio
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.agents.v1 import agents_pb2, agents_service_pb2, conversations_pb2, runs_pb2, runs_service_pb2
from mnemesh.agents.v1 import conversations_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2, paging_pb2
from mnemesh_client import Agent
from mnemesh_kit.errors import Aborted, FailedPrecondition, InvalidArgument, NotFound
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import REHEARSAL, Mesh
from mnemesh_testkit.mesh.turns import assert_whole, turn


def conversations(mesh: Mesh) -> Any:
    return mesh.stubs["mnemesh.agents.v1.ConversationService"]


async def opened(mesh: Mesh, agent: Agent, **fields: Any) -> conversations_pb2.Conversation:
    given = conversations_pb2.Conversation(agent_id=agent.id, **fields)
    answer = await conversations(mesh).CreateConversation(rpc.CreateConversationRequest(conversation=given))
    return answer.conversation  # type: ignore[no-any-return]


async def shown(mesh: Mesh, conversation_id: str) -> list[message_pb2.Message]:
    return list((await mesh.client.messages.window(conversation_id)).messages)


@pytest.mark.mesh(in_memory=False)
async def test_conversations_have_separate_windows(mesh: Mesh) -> None:
    agent = await mesh.client.agents.create(model=REHEARSAL, blocks={"human": "Nothing yet.", "persona": "Kind."})
    thread = await opened(mesh, agent, summary="Tea")
    (system,) = await shown(mesh, thread.id)
    assert system.role == message_pb2.ROLE_SYSTEM

    result = await asyncio.gather(
        turn(agent, "My name is Ada.", conversation_id=thread.id),
        turn(agent, "Remember that the key is under the mat."),
    )
    assert [one.status for one in result] == ["COMPLETED", "COMPLETED"]
    assert "Ada" in (await turn(agent, "What is my name?")).said, "memory is the agent's"
    assert "under the mat" in (await turn(agent, "What do you know about the key?", conversation_id=thread.id)).said
    windows = [await shown(mesh, thread.id), await shown(mesh, agent.proto.default_conversation_id)]
    for window in windows:
        assert_whole(window)
    assert not {message.id for message in windows[0]} & {message.id for message in windows[1]}

    found = (
        await conversations(mesh).GetConversation(
            rpc.GetConversationRequest(conversation_id=thread.id, include_message_ids=True)
        )
    ).conversation
    assert list(found.message_ids) == [message.id for message in windows[0]]
    assert found.HasField("last_message_time")

    fork = (
        await conversations(mesh).ForkConversation(rpc.ForkConversationRequest(conversation_id=thread.id))
    ).conversation
    forked = await shown(mesh, fork.id)
    assert [message.id for message in forked[1:]] == [message.id for message in windows[0][1:]]
    assert forked[0].id != windows[0][0].id
    assert "Ada" in (await turn(agent, "What is my name?", conversation_id=fork.id)).said

    await mesh.restart("orchestrator")
    await conversations(mesh).DeleteConversation(rpc.DeleteConversationRequest(conversation_id=thread.id))
    for gone in (
        conversations(mesh).GetConversation(rpc.GetConversationRequest(conversation_id=thread.id)),
        mesh.client.messages.window(thread.id),
        turn(agent, "Hello?", conversation_id=thread.id),
    ):
        with pytest.raises(NotFound):
            await gone
    assert [message.id for message in (await shown(mesh, fork.id))[1 : len(forked)]] == [m.id for m in forked[1:]]
    assert_whole(await shown(mesh, fork.id))

    await mesh.client.agents.delete(agent.id)
    with pytest.raises(NotFound):
        await mesh.client.messages.window(fork.id)


async def test_default_conversation_has_three_names(mesh: Mesh) -> None:
    agent = await mesh.client.agents.create(model=REHEARSAL, blocks={"human": "", "persona": ""})
    await agent.ask("Hello.")
    default = agent.proto.default_conversation_id
    for name in (default, "default", agent.id):
        request = agents_service_pb2.GetContextWindowRequest(agent_id=agent.id, conversation_id=name)
        window = (await mesh.stubs.agents.GetContextWindow(request)).context_window
        assert len(window.messages) == len(await shown(mesh, default))
    found = await conversations(mesh).GetConversation(rpc.GetConversationRequest(conversation_id=agent.id))
    assert (found.conversation.id, found.conversation.is_default) == (default, True)
    with pytest.raises(FailedPrecondition):
        await conversations(mesh).DeleteConversation(rpc.DeleteConversationRequest(conversation_id=agent.id))


async def test_report_recompile_and_reset_affect_one_window(mesh: Mesh) -> None:
    agent = await mesh.client.agents.create(model=REHEARSAL, blocks={"human": "", "persona": ""})
    thread = await opened(mesh, agent, model_settings={"context_window": 9_000})
    await turn(agent, "Hello.", conversation_id=thread.id)
    await agent.ask("Hello.")
    place = {"agent_id": agent.id, "conversation_id": thread.id}
    report = await mesh.stubs.agents.GetContextWindow(agents_service_pb2.GetContextWindowRequest(**place))
    assert report.context_window.context_window_size == 9_000
    before = await shown(mesh, agent.proto.default_conversation_id)
    await mesh.stubs.agents.RecompileAgent(agents_service_pb2.RecompileAgentRequest(**place))
    await mesh.stubs.agents.ResetMessages(agents_service_pb2.ResetMessagesRequest(**place))
    assert len(await shown(mesh, thread.id)) == 1
    assert await shown(mesh, agent.proto.default_conversation_id) == before


async def test_conversations_are_listed_and_updated(mesh: Mesh) -> None:
    agent = await mesh.client.agents.create(model=REHEARSAL, blocks={"human": "", "persona": ""})
    first, second = await opened(mesh, agent, summary="Tea"), await opened(mesh, agent, summary="Coffee")
    await turn(agent, "Hello.", conversation_id=second.id)

    async def listed(**fields: Any) -> list[str]:
        answer = await conversations(mesh).ListConversations(rpc.ListConversationsRequest(**fields))
        return [found.id for found in answer.conversations]

    default = agent.proto.default_conversation_id
    assert await listed(agent_id=agent.id) == [second.id, first.id, default]
    assert await listed(summary_search="tEA") == [first.id]
    by_message = rpc.CONVERSATION_ORDER_BY_LAST_MESSAGE_TIME
    for order in (paging_pb2.SORT_ORDER_ASCENDING, paging_pb2.SORT_ORDER_DESCENDING):
        assert (await listed(order=order, order_by=by_message))[0] == second.id
    changed = await conversations(mesh).UpdateConversation(
        rpc.UpdateConversationRequest(
            conversation=conversations_pb2.Conversation(id=first.id, archived=True),
            update_mask=FieldMask(paths=["summary", "archived"]),
        )
    )
    assert (changed.conversation.HasField("summary"), changed.conversation.archived) == (False, True)
    assert await listed(archived=True) == [first.id]


async def test_busy_conversation_is_neither_deleted_nor_forked(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await mesh.client.agents.create(model="openai/fake-model", blocks={"human": "", "persona": ""})
    thread = await opened(mesh, agent)
    fake_openai.script = [Reply(text="Late.", gates=[asyncio.Event()])]
    run = await mesh.client.runs.start(agent.id, "Hello", conversation_id=thread.id)
    for refused in (
        conversations(mesh).DeleteConversation(rpc.DeleteConversationRequest(conversation_id=thread.id)),
        conversations(mesh).ForkConversation(
            rpc.ForkConversationRequest(conversation_id=thread.id, on_busy=runs_pb2.ON_BUSY_REJECT)
        ),
    ):
        with pytest.raises(Aborted) as raised:
            await refused
        assert (raised.value.reason, raised.value.metadata["run_id"]) == ("CONVERSATION_BUSY", run.id)
    await mesh.stubs.runs.CancelRuns(runs_service_pb2.CancelRunsRequest(conversation_id=thread.id))
    await conversations(mesh).DeleteConversation(rpc.DeleteConversationRequest(conversation_id=thread.id))


async def test_fork_waits_for_a_run_and_reset_empties_only_the_source(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await mesh.client.agents.create(model="openai/fake-model", blocks={"human": "", "persona": ""})
    gate = asyncio.Event()
    fake_openai.script = [Reply(text="One.", gates=[gate]), Reply(text="Two.")]
    first = await mesh.client.runs.start(agent.id, "First")
    fork = asyncio.ensure_future(
        conversations(mesh).ForkConversation(rpc.ForkConversationRequest(conversation_id=agent.id), timeout=60)
    )
    gate.set()
    forked = (await fork).conversation
    window = await mesh.client.messages.window(forked.id)
    assert [message.content[0].text.text for message in window.messages[1:3]] == ["First", "One."]
    assert [message.run_id for message in window.messages[1:3]] == [first.id, first.id]
    await mesh.client.agents.stub.ResetMessages(
        agents_service_pb2.ResetMessagesRequest(agent_id=agent.id, on_busy=runs_pb2.ON_BUSY_WAIT)
    )
    assert await agent.ask("Second") == "Two."
    window = await mesh.client.messages.window(agent.proto.default_conversation_id)
    assert [message.content[0].text.text for message in window.messages[1:]] == ["Second", "Two."]


async def test_conversation_has_isolated_blocks(mesh: Mesh) -> None:
    agent = await mesh.client.agents.create(model=REHEARSAL, blocks={"human": "Nothing yet.", "persona": "Kind."})
    thread = await opened(mesh, agent, isolated_block_labels=["human"])
    assert (list(thread.isolated_block_labels), len(thread.isolated_block_ids)) == (["human"], 1)
    await turn(agent, "My name is Ada.", conversation_id=thread.id)
    await turn(agent, "My name is Grace.")
    assert "Ada" in (await turn(agent, "What is my name?", conversation_id=thread.id)).said
    assert "Grace" in (await turn(agent, "What is my name?")).said
    own = await mesh.client.blocks.get(thread.isolated_block_ids[0])
    assert "Ada" in own.value
    await conversations(mesh).DeleteConversation(rpc.DeleteConversationRequest(conversation_id=thread.id))
    with pytest.raises(NotFound):
        await mesh.client.blocks.get(own.id)


async def test_default_window_can_be_set_by_message_ids(mesh: Mesh) -> None:
    agent, other = [await mesh.client.agents.create(model=REHEARSAL, blocks={"human": ""}) for _ in range(2)]
    await turn(agent, "The kettle is red.")
    await turn(agent, "The lamp is green.")
    window = (await mesh.client.messages.window(agent.proto.default_conversation_id)).messages
    ids = [message.id for message in window]
    chosen = [ids[0], *ids[-2:]]
    changed = await agent.update(message_ids=chosen)
    assert list(changed.proto.message_ids) == chosen
    shown = (await mesh.client.messages.window(agent.proto.default_conversation_id)).messages
    assert [message.id for message in shown] == chosen
    assert len([message async for message in agent.messages()]) >= len(ids)

    foreign = (await mesh.client.messages.window(other.proto.default_conversation_id)).messages[0].id
    for wrong in ([ids[0], foreign], [ids[0], "message-00000000-0000-4000-8000-00000000dead"]):
        with pytest.raises(NotFound):
            await agent.update(message_ids=wrong)
    for fields, field in (
        ({"message_ids": [ids[0], ids[1], ids[1]]}, "agent.message_ids"),
        ({"message_ids": [ids[1]]}, "agent.message_ids"),
        ({"message_ids": []}, "agent.message_ids"),
        ({"message_ids": ["x"]}, "agent.message_ids"),
        ({"message_ids": chosen, "name": "both"}, "update_mask"),
    ):
        with pytest.raises(InvalidArgument) as refused:
            await agent.update(**fields)
        assert refused.value.field == field
    shown = (await mesh.client.messages.window(agent.proto.default_conversation_id)).messages
    assert [message.id for message in shown] == chosen


async def test_provenance_of_an_agent_can_be_updated(mesh: Mesh) -> None:
    agent = await mesh.client.agents.create("ada", model=REHEARSAL)
    change = agents_pb2.Agent(id=agent.id)
    change.provenance.project_id = "project-2"
    request = agents_service_pb2.UpdateAgentRequest(
        agent=change, update_mask=FieldMask(paths=["provenance.project_id", "provenance.entity_id"])
    )
    stub = mesh.client.agents.stub
    changed = (await stub.UpdateAgent(request)).agent
    assert (changed.provenance.project_id, changed.provenance.HasField("entity_id")) == ("project-2", False)
    assert changed.provenance.created_by_id
    where = agents_service_pb2.AgentFilter(project_id="project-2")
    found = (await stub.ListAgents(agents_service_pb2.ListAgentsRequest(filter=where))).agents
    assert [each.id for each in found] == [agent.id]


async def test_conversation_is_found_by_the_key_of_its_client(mesh: Mesh) -> None:
    agent = await mesh.client.agents.create(model=REHEARSAL, blocks={"human": "Nothing yet."})

    async def open_keyed(key: str, of: Agent = agent) -> conversations_pb2.Conversation:
        given = conversations_pb2.Conversation(agent_id=of.id, key=key, isolated_block_labels=["human", "overlay"])
        request = rpc.CreateConversationRequest(conversation=given, create_missing_blocks=True)
        answer = await conversations(mesh).CreateConversation(request)
        return answer.conversation  # type: ignore[no-any-return]

    first, same = await asyncio.gather(open_keyed("web/1"), open_keyed("web/1"))
    assert (first.id, len(first.isolated_block_ids)) == (same.id, 2)
    other = await mesh.client.agents.create(model=REHEARSAL)
    found = [await open_keyed("web/1"), await open_keyed("web/2"), await open_keyed("web/1", other)]
    assert [found[0], len({one.id for one in found})] == [first, 3]

    await mesh.client.blocks.update(first.isolated_block_ids[1], value="Speak like a pirate.")
    assert "Speak like a pirate." in (await turn_window(mesh, agent, first.id))[0].content[0].text.text
    assert "pirate" not in str(await turn_window(mesh, agent, found[1].id))
    fork = (
        await conversations(mesh).ForkConversation(rpc.ForkConversationRequest(conversation_id=first.id))
    ).conversation
    assert not fork.HasField("key")

    await conversations(mesh).DeleteConversation(rpc.DeleteConversationRequest(conversation_id=first.id))
    assert (await open_keyed("web/1")).id not in (first.id, fork.id)


async def turn_window(mesh: Mesh, agent: Agent, conversation_id: str) -> list[message_pb2.Message]:
    """The window after a turn, whose system message shows the conversation's blocks."""
    await turn(agent, "Hello.", conversation_id=conversation_id)
    return await shown(mesh, conversation_id)


async def test_settings_of_a_run_replace_those_of_the_agent(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    fake_openai.script = lambda _: Reply(text="Hello.")
    settings = agents_pb2.ModelSettings(temperature=0.1, max_output_tokens=50)
    agent = await mesh.client.agents.create(model="openai/fake-model", settings=settings)
    config = runs_pb2.RunConfig(model_settings=agents_pb2.ModelSettings(temperature=0.7))
    await turn(agent, "Hello.", config=config)
    await turn(agent, "Hello again.")
    sent = [request.body for request in fake_openai.requests]
    assert [(body["temperature"], body["max_tokens"]) for body in sent] == [(0.7, 50), (0.1, 50)]
