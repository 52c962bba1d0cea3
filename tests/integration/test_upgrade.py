"""Every service reads and continues the data of its first version, on both SQL engines.

`first_version/` contains the rows of a mesh after a few turns, with a shared block, a tool, and a deleted agent.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
import pytest_asyncio
from mnemesh.archival.v1.archives_service_pb2 import ListArchivesRequest
from mnemesh.archival.v1.passages_service_pb2 import GetArchivalSummaryRequest
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.blocks.v1 import blocks_service_pb2 as blocks_rpc
from mnemesh.recall.v1.messages_service_pb2 import (
    SEARCH_MODE_TEXT,
    AppendMessagesRequest,
    ListMessagesRequest,
    SearchMessagesRequest,
)
from mnemesh.types.v1 import message_pb2
from mnemesh.types.v1.paging_pb2 import SORT_ORDER_ASCENDING
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.ids import new_id
from mnemesh_kit.services import STORE_NAMES
from mnemesh_retrieval.edge import EdgeIndex
from mnemesh_retrieval.index import Collection, Point
from mnemesh_retrieval.registry import HASHING, make_embedder
from mnemesh_testkit.databases.postgres import PostgresServer
from mnemesh_testkit.databases.revisions import at_revision
from mnemesh_testkit.mesh.in_process import EMBEDDER, REHEARSAL, Mesh
from mnemesh_testkit.mesh.turns import assert_whole, stored, turn

ROWS = {
    path.stem: json.loads(path.read_text()) for path in sorted((Path(__file__).parent / "first_version").glob("*.json"))
}
"""Rows per service and table. A service that the first version did not have is absent."""
PASSAGE = "Ada grows orchids."
(GONE,) = (row["agent_id"] for row in ROWS["recall"]["agents"] if row["erased_at"])


@pytest_asyncio.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.full)])
async def directory(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    """The URLs of the databases that the first version left behind; those of later services are empty."""
    server: PostgresServer | None = None
    urls = {service: f"sqlite:///{tmp_path / f'{service}.db'}" for service in STORE_NAMES}
    names = []
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres_server")
        names = [await server.create_database() for _ in STORE_NAMES]
        urls = {service: server.url(name) for service, name in zip(STORE_NAMES, names, strict=True)}
    for service, rows in ROWS.items():
        await at_revision(urls[service], f"mnemesh_{service}", "0001", rows)
    await _fill_index(tmp_path / "archival-index")
    yield urls
    for name in names:
        assert server is not None
        await server.drop_database(name)


async def _fill_index(directory: Path) -> None:
    """Writes the passages into a vector index: the first version had their texts there only."""
    index = await EdgeIndex.open(directory)
    (archive,) = ROWS["archival"]["archives"]
    collection = Collection(
        f"passages:{archive['embedder']}",
        archive["dimension"],
        keyword_fields=("organization_id", "archive_id", "tags", "agent_id", "file_id", "folder_id", "source"),
        datetime_fields=("created_at",),
        text_fields=("text",),
        tenant_field="archive_id",
    )
    await index.ensure_collection(collection)
    (vector,) = await make_embedder(HASHING).embed([PASSAGE])
    points = []
    for row in ROWS["archival"]["passages"]:
        created_at = f"{row['created_at'].replace(' ', 'T')}Z"
        payload = {name: row[name] for name in ("organization_id", "archive_id", "agent_id")} | {
            "passage_id": row["id"],
            "text": PASSAGE,
            "tags": [],
            "source": "AGENT",
            "created_at": created_at,
            "updated_at": created_at,
        }
        points.append(Point(UUID(row["point_id"]), vector, PASSAGE, payload))
    await index.write(collection.name, points)
    await index.close()


async def test_mesh_of_the_first_version_is_upgraded_without_loss(directory: dict[str, str], tmp_path: Path) -> None:
    settings = {service: {"database_url": url} for service, url in directory.items()}
    for _ in range(2):  # the second start finds what the first one made of it
        async with Mesh(tmp_path, settings=settings) as mesh:
            agents = {agent.name: agent async for agent in mesh.client.agents.list()}
            assert set(agents) == {"ada", "grace"}
            assert {agent.model for agent in agents.values()} == {REHEARSAL}  # stored as engram/rehearsal
            ada = agents["ada"]
            assert (ada.proto.description, list(ada.proto.tags)) == ("The first agent", ["friendly"])
            await require_blocks(mesh, ada.id)
            await require_runs(mesh, ada.id)
            await require_tools(mesh)
            (archive,) = (await mesh.stubs.archives.ListArchives(ListArchivesRequest())).archives
            assert archive.embedder == EMBEDDER
            summary = await mesh.stubs.passages.GetArchivalSummary(GetArchivalSummaryRequest(agent_id=ada.id))
            assert summary.passage_count == len(ROWS["archival"]["passages"]) == 2
            hits = await ada.search_passages("orchid")
            assert [hit.passage.text for hit in hits] == [PASSAGE] * 2
            await require_messages(mesh, ada.id)
            before = len(await stored(ada))
            result = await turn(ada, "What is my name?")
            assert (result.status, "Ada" in result.said) == ("COMPLETED", True), result.error
            rows = await stored(ada)
            assert len(rows) == before + 2
            assert_whole(rows)
            assert rows[-1].model == REHEARSAL
            late = message_pb2.Message(id=new_id("message"), role=message_pb2.ROLE_USER)
            late.content.add().text.text = "late"
            with pytest.raises(MnemeshError) as error:
                await mesh.stubs.messages.AppendMessages(AppendMessagesRequest(agent_id=GONE, messages=[late]))
            assert error.value.reason == "ERASED"


async def require_blocks(mesh: Mesh, agent_id: str) -> None:
    """Values, order, history and holders as they were."""
    memory = (
        await mesh.stubs.blocks.GetCoreMemory(blocks_rpc.GetCoreMemoryRequest(agent_id=agent_id))
    ).core_memory.blocks
    values = {row["id"]: row["value"] for row in ROWS["blocks"]["blocks"]}
    assert all(values[block.id] == block.value for block in memory)
    (shared,) = (block for block in memory if block.label == "project")
    assert shared.value == "We ship on Friday.\nIt is called Heron."
    listed = await mesh.stubs.blocks.ListBlockRevisions(blocks_rpc.ListBlockRevisionsRequest(block_id=shared.id))
    assert {each.value for each in listed.revisions} == {"We ship on Friday.", shared.value}
    holders = await mesh.stubs.blocks.ListBlockAgents(blocks_rpc.ListBlockAgentsRequest(block_id=shared.id))
    assert len(holders.agent_ids) == 2
    owner = blocks_pb2.Author(owner=blocks_pb2.OwnerAuthor())
    undo = blocks_rpc.RevertBlockRequest(block_id=shared.id, author=owner, undo=blocks_rpc.UndoTarget())
    assert (await mesh.stubs.blocks.RevertBlock(undo)).block.value == "We ship on Friday."
    redo = blocks_rpc.RevertBlockRequest(block_id=shared.id, author=owner, redo=blocks_rpc.RedoTarget())
    assert (await mesh.stubs.blocks.RevertBlock(redo)).block.value == shared.value


async def require_messages(mesh: Mesh, agent_id: str) -> None:
    """Every message is there in its order, and is found by its words."""
    own = [row for row in ROWS["recall"]["messages"] if row["agent_id"] == agent_id]
    wanted = [row["id"] for row in sorted(own, key=lambda row: int(row["sequence_id"]))]
    listed = ListMessagesRequest(agent_ids=[agent_id], page_size=100, order=SORT_ORDER_ASCENDING)
    found = (await mesh.stubs.messages.ListMessages(listed)).messages
    assert [message.id for message in found][: len(wanted)] == wanted
    request = SearchMessagesRequest(query="launch on Friday", agent_id=agent_id, mode=SEARCH_MODE_TEXT)
    hits = (await mesh.stubs.messages.SearchMessages(request)).hits
    assert "the launch is on Friday" in hits[0].text


async def require_runs(mesh: Mesh, agent_id: str) -> None:
    """Runs, their steps and their events."""
    old = [row for row in ROWS["orchestrator"]["runs"] if row["agent_id"] == agent_id]
    runs = {run.id: run async for run in mesh.client.runs.list()}
    assert {row["id"] for row in old} <= set(runs)
    for row in old:
        steps = [step.id async for step in mesh.client.runs.steps(row["id"])]
        assert sorted(steps) == sorted(
            each["id"] for each in ROWS["orchestrator"]["steps"] if each["run_id"] == row["id"]
        )


async def require_tools(mesh: Mesh) -> None:
    """A tool with its schema."""
    (row,) = ROWS["tools"]["tools"]
    (tool,) = [tool async for tool in mesh.client.tools.list() if tool.name == row["name"]]
    assert (tool.id, tool.source_code, tool.json_schema) == (row["id"], row["source_code"], row["json_schema"])
