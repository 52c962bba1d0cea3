"""The whole mesh on PostgreSQL: the same conversation, and restarts lose nothing."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from mnemesh_kit.services import STORE_NAMES
from mnemesh_testkit.databases.postgres import PostgresServer
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import assert_whole, stored, turn, window_of


@pytest_asyncio.fixture
async def mesh(tmp_path: Path, postgres_server: PostgresServer) -> AsyncIterator[Mesh]:
    databases = {service: await postgres_server.create_database() for service in STORE_NAMES}
    settings = {service: {"database_url": postgres_server.url(name)} for service, name in databases.items()}
    async with Mesh(tmp_path, settings=settings) as running:
        yield running
    for name in databases.values():
        await postgres_server.drop_database(name)


async def test_conversation_on_postgresql_uses_every_kind_of_memory_and_survives_restarts(mesh: Mesh) -> None:
    agent = await mesh.client.agents.create(blocks={"human": "", "persona": "Kind."})
    result = await turn(agent, "My name is Ada. Remember that the key is under the mat.", stream_tokens=True)
    assert result.status == "COMPLETED", result.error
    assert result.streamed == result.said
    for service in STORE_NAMES:
        await mesh.restart(service)
    request = "What is my name? What do you know about the key? What did I say about the key?"
    result = await turn(agent, request)
    assert "Your name is Ada" in result.said
    assert result.said.count("under the mat") >= 2
    rows = await stored(agent)
    assert_whole(rows)
    assert [row.id for row in rows] == [row.id for row in await window_of(mesh.client, agent)]
    assert not list(mesh.directory.glob("*.db*")), "something was stored in SQLite all the same"


async def test_concurrent_messages_on_postgresql_run_one_after_another(mesh: Mesh) -> None:
    agent = await mesh.client.agents.create(blocks={"human": ""})
    result = await asyncio.gather(*(turn(agent, f"Remember that number {n} is taken.") for n in range(8)))
    assert [item.status for item in result] == ["COMPLETED"] * 8
    assert_whole(await stored(agent))
    assert len([passage async for passage in agent.passages()]) == 8
    await agent.delete()
    assert [row async for row in mesh.client.messages.list(agent_id=agent.id)] == []


@pytest.mark.full
async def test_agents_with_partners_are_created_and_deleted_at_once_on_postgresql(mesh: Mesh) -> None:
    client = mesh.client
    plain, *agents = await asyncio.gather(
        *(client.agents.create(f"a-{n}", blocks={"human": "Ada."}, enable_sleeptime=n > 0) for n in range(4))
    )
    await asyncio.gather(*(plain.update(enable_sleeptime=True, description=f"{n}") for n in range(3)))
    for agent in (plain, *agents):
        group = await client.groups.find_managed_by(agent.id)
        assert group is not None
        (partner_id,) = group.agent_ids
        partner = await client.agents.find(partner_id)
        free = [await client.blocks.create(f"{holder.id}", value="x") for holder in (agent, partner)]
        await asyncio.gather(
            *(client.blocks.attach(holder.id, block.id) for block in free for holder in (agent, partner))
        )
        held = [{block.id for block in (await holder.memory()).blocks} for holder in (agent, partner)]
        assert {block.id for block in free} <= held[0] < held[1]
        assert len(held[1] - held[0]) == 1
    await asyncio.gather(*(agent.delete() for agent in (plain, *agents)))
    assert [agent async for agent in client.agents.list()] == []
    assert [group async for group in client.groups.list()] == []
