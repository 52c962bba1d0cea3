"""Identities across the services: attached to agents and blocks, found by them, and erased everywhere."""

from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.agents.v1 import agents_service_pb2, identities_pb2, runs_pb2
from mnemesh.agents.v1 import identities_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent, text_of
from mnemesh_kit.errors import AlreadyExists, InvalidArgument, NotFound
from mnemesh_kit.ids import new_id
from mnemesh_testkit.mesh.in_process import REHEARSAL, Mesh
from mnemesh_testkit.mesh.turns import turn

BOTH = rpc.IdentityView(agent_ids=True, block_ids=True)


def identities(mesh: Mesh) -> Any:
    return mesh.stubs["mnemesh.agents.v1.IdentityService"]


async def agent_of(mesh: Mesh) -> tuple[Agent, str]:
    agent = await mesh.client.agents.create(model=REHEARSAL, blocks={"human": "Ada"})
    blocks = [block async for block in mesh.client.blocks.list(agent_id=agent.id)]
    return agent, blocks[0].id


def an_identity(key: str = "ada", **fields: Any) -> identities_pb2.Identity:
    return identities_pb2.Identity(identifier_key=key, name="Ada", type=identities_pb2.IDENTITY_TYPE_USER, **fields)


async def created(mesh: Mesh, identity: identities_pb2.Identity, request_id: str = "") -> identities_pb2.Identity:
    request = rpc.CreateIdentityRequest(identity=identity, request_id=request_id)
    return (await identities(mesh).CreateIdentity(request)).identity  # type: ignore[no-any-return]


async def seen(mesh: Mesh, identity_id: str) -> tuple[list[str], list[str]]:
    request = rpc.GetIdentityRequest(identity_id=identity_id, view=BOTH)
    identity = (await identities(mesh).GetIdentity(request)).identity
    return list(identity.agent_ids), list(identity.block_ids)


async def test_identity_has_agents_and_blocks(mesh: Mesh) -> None:
    agent, block_id = await agent_of(mesh)
    other, other_block = await agent_of(mesh)
    identity = await created(mesh, an_identity(agent_ids=[agent.id], block_ids=[block_id]))
    assert await seen(mesh, identity.id) == ([agent.id], [block_id])
    assert list((await mesh.client.blocks.get(block_id)).identity_ids) == [identity.id]
    for target in ({"agent_id": other.id}, {"block_id": other_block}):
        for _ in range(2):
            await identities(mesh).AttachIdentity(rpc.AttachIdentityRequest(identity_id=identity.id, **target))
    found = [item.id async for item in mesh.client.agents.list(identity_id=identity.id)]
    assert set(found) == {agent.id, other.id}
    blocks = await identities(mesh).ListIdentityBlocks(rpc.ListIdentityBlocksRequest(identity_id=identity.id))
    assert list(blocks.block_ids) == sorted([block_id, other_block])
    listed = rpc.ListIdentitiesRequest(filter={"block_id": other_block}, view=BOTH)
    assert [item.id for item in (await identities(mesh).ListIdentities(listed)).identities] == [identity.id]
    detach = rpc.DetachIdentityRequest(request_id="d-1", identity_id=identity.id, block_id=block_id)
    for _ in range(2):
        await identities(mesh).DetachIdentity(detach)
    with pytest.raises(NotFound):
        await identities(mesh).DetachIdentity(rpc.DetachIdentityRequest(identity_id=identity.id, block_id=block_id))
    updated = identities_pb2.Identity(id=identity.id, agent_ids=[agent.id], block_ids=[block_id])
    mask = FieldMask(paths=["agent_ids", "block_ids"])
    await identities(mesh).UpdateIdentity(rpc.UpdateIdentityRequest(identity=updated, update_mask=mask))
    assert await seen(mesh, identity.id) == ([agent.id], [block_id])
    for _ in range(2):
        await identities(mesh).DeleteIdentity(rpc.DeleteIdentityRequest(identity_id=identity.id))
    assert not (await mesh.client.blocks.get(block_id)).identity_ids
    assert not (await mesh.client.agents.get(agent.id)).proto.identity_ids


async def test_request_with_a_missing_resource_changes_nothing(mesh: Mesh) -> None:
    agent, _ = await agent_of(mesh)
    for wrong in ({"block_ids": [new_id("block")]}, {"agent_ids": [agent.id, new_id("agent")]}):
        with pytest.raises(NotFound):
            await created(mesh, an_identity(**wrong))
    count = await identities(mesh).CountIdentities(rpc.CountIdentitiesRequest())
    assert count.count == 0
    with pytest.raises(NotFound):
        await mesh.stubs["mnemesh.agents.v1.AgentService"].CreateAgent(
            agents_service_pb2.CreateAgentRequest(agent={"model": REHEARSAL, "identity_ids": [new_id("identity")]})
        )


async def test_upsert_by_key(mesh: Mesh) -> None:
    agent, _ = await agent_of(mesh)
    first = await created(mesh, an_identity(agent_ids=[agent.id]))
    with pytest.raises(AlreadyExists):
        await created(mesh, an_identity())
    given = an_identity(properties=[{"key": "city", "text": "London"}, {"key": "age", "integer": 36}])
    again = await identities(mesh).UpsertIdentity(rpc.UpsertIdentityRequest(identity=given))
    assert (again.identity.id, again.created) == (first.id, False)
    assert await seen(mesh, first.id) == ([agent.id], [])
    changed = await identities(mesh).UpsertIdentityProperties(
        rpc.UpsertIdentityPropertiesRequest(
            identity_id=first.id,
            properties=[{"key": "age", "integer": 37}, {"key": "city"}, {"key": "x", "json": "[]"}],
        )
    )
    assert [(p.key, p.WhichOneof("value")) for p in changed.identity.properties] == [("age", "integer"), ("x", "json")]


async def test_erasure_of_an_identity_deletes_everything_and_reports_it(mesh: Mesh) -> None:
    (agent, block_id), (other, other_block) = await agent_of(mesh), await agent_of(mesh)
    bystander, kept = await agent_of(mesh)
    lone = await mesh.client.blocks.create("note", "of Ada")
    identity = await created(mesh, an_identity(agent_ids=[agent.id, other.id], block_ids=[lone.id, block_id]))
    await turn(agent, "Remember that the key is under the mat.")
    upserted = await mesh.client.identities.upsert("ada", "Ada Lovelace", properties={"city": "London"})
    assert upserted.id == identity.id
    [found] = [item async for item in mesh.client.identities.list(identifier_key="ada")]
    assert set((await mesh.client.identities.get(found.id)).agent_ids) == {agent.id, other.id}
    report = await mesh.client.identities.erase(identity.id)
    assert (report.agents, report.deleted_blocks, report.detached_blocks) == (2, 3, 0)
    assert report.messages >= 4
    assert report.contexts == 2
    for gone in (agent.id, other.id):
        with pytest.raises(NotFound):
            await mesh.client.agents.get(gone)
    for gone in (lone.id, block_id, other_block):
        with pytest.raises(NotFound):
            await mesh.client.blocks.get(gone)
    with pytest.raises(NotFound):
        await mesh.client.identities.erase(identity.id)
    assert (await mesh.client.blocks.get(kept)).value == "Ada"
    assert (await mesh.client.agents.get(bystander.id)).id == bystander.id


async def test_erasure_of_an_identity_keeps_agents_and_messages_of_others(mesh: Mesh) -> None:
    (shared, block_id), (stranger, _) = await agent_of(mesh), await agent_of(mesh)
    ada = await created(mesh, an_identity(agent_ids=[shared.id], block_ids=[block_id]))
    bob = await created(mesh, an_identity("bob", agent_ids=[shared.id], block_ids=[block_id]))
    for agent, sender, text in (
        (shared, ada, "My cat is called Whiskers."), (shared, bob, "My dog is called Rex."),
        (stranger, ada, "Whiskers is hungry."), (stranger, bob, "Rex is tired."),
    ):  # fmt: skip
        part = message_pb2.ContentPart(text=message_pb2.TextPart(text=text))
        sent = runs_pb2.InputMessage(sender_id=sender.id, content=[part])
        async for _ in agent.send([sent]):
            pass
    await stranger.set_tool_approval("archival_memory_insert")
    part = message_pb2.ContentPart(text=message_pb2.TextPart(text="Remember that Whiskers is a cat."))
    async for _ in stranger.send([runs_pb2.InputMessage(sender_id=ada.id, content=[part])]):
        pass
    assert (await mesh.client.agents.get(stranger.id)).proto.pending_approval_request_id
    daily = [
        await mesh.client.schedules.create(
            [runs_pb2.InputMessage(sender_id=sender.id, content=[part])], agent_id=stranger.id, cron="0 9 * * *"
        )
        for sender in (ada, bob)
    ]
    report = await mesh.client.identities.erase(ada.id)
    assert [schedule async for schedule in mesh.client.schedules.list()] == daily[1:]
    assert (report.agents, report.runs, report.detached_blocks, report.deleted_blocks) == (0, 4, 1, 0)
    assert not (await mesh.client.agents.get(stranger.id)).proto.pending_approval_request_id
    assert (await turn(stranger, "Hello?")).status == "COMPLETED"
    assert report.messages >= 4
    for agent in (shared, stranger):
        texts = [text_of(message.content) async for message in mesh.client.messages.list(agent_id=agent.id)]
        assert "Rex" in str(texts)
        assert "Whiskers" not in str(texts)
    assert await seen(mesh, bob.id) == ([shared.id], [block_id])
    with pytest.raises(NotFound):
        await mesh.client.identities.get(ada.id)


INVALID: list[tuple[str, dict[str, Any]]] = [
    ("identity.identifier_key", {"identifier_key": ""}),
    ("identity.name", {"name": ""}),
    ("identity.name", {"name": "a\0"}),
    ("identity.type", {"type": 0}),
    ("identity.type", {"type": 99}),
    ("identity.agent_ids", {"agent_ids": ["x"]}),
    ("identity.block_ids", {"block_ids": ["x"]}),
    ("identity.properties[0].key", {"properties": [{"text": "a"}]}),
    ("identity.properties[0].json", {"properties": [{"key": "a", "json": "{"}]}),
    ("identity.properties[0].number", {"properties": [{"key": "a", "number": float("nan")}]}),
]


async def test_invalid_request_is_refused_with_the_field(mesh: Mesh) -> None:
    for field, identity in INVALID:
        arguments = {"identifier_key": "k", "name": "n", "type": identities_pb2.IDENTITY_TYPE_USER, **identity}
        with pytest.raises(InvalidArgument) as refused:
            await created(mesh, identities_pb2.Identity(**arguments))
        assert refused.value.field == field
