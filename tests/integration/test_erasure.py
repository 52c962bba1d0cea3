"""After an agent is deleted and maintenance has run, no file of the mesh contains a word from its data."""

import asyncio
import sqlite3
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest
from mnemesh.archival.v1.archives_pb2 import Archive, Passage
from mnemesh.archival.v1.archives_service_pb2 import CreateArchiveRequest, DeleteArchiveRequest
from mnemesh.archival.v1.passages_service_pb2 import InsertPassagesRequest
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.blocks.v1 import blocks_service_pb2 as blocks_rpc
from mnemesh_client import Agent
from mnemesh_kit.config import StartupError
from mnemesh_kit.services import STORE_NAMES
from mnemesh_kit.time import FrozenClock
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import EMBEDDER, Mesh
from mnemesh_testkit.mesh.turns import turn
from mnemesh_testkit.timeouts import scaled

CANARY = "canaryZq7xVw3"
STAYS = "heronKp4tRs9"
TOOL = f'def sing() -> str:\n    """Sings {CANARY}."""\n    return "{CANARY}"\n'


def holding(directory: Path, word: str) -> set[str]:
    """The files that hold a word, as it was written or as a text index folds it."""
    files = (file for file in directory.rglob("*") if file.is_file())
    return {str(file.relative_to(directory)) for file in files if word.lower().encode() in file.read_bytes().lower()}


async def maintained(directory: Path, clock: FrozenClock) -> dict[str, list[str]]:
    """Runs the maintenance of every service and returns the reports."""
    reports = {}
    for service in STORE_NAMES:
        config = import_module(f"mnemesh_{service}.config").Config(
            port=0, data_dir=str(directory), **({"embedder": EMBEDDER} if service in ("recall", "archival") else {})
        )
        lines = import_module(f"mnemesh_{service}.maintenance").maintain(config, clock=clock)
        reports[service] = [line async for line in lines]
    return reports


async def plant(mesh: Mesh, fake_openai: FakeOpenAI) -> tuple[Agent, str]:
    """An agent whose memories and folder contain the canary, and one that is kept and has its own word.

    Returns:
        The agent and the id of the folder.
    """
    kept = await mesh.client.agents.create(
        model="openai/fake-model", name=STAYS, blocks=[blocks_pb2.Block(label="human", value=STAYS)]
    )
    tool = await mesh.client.tools.create(TOOL)
    agent = await mesh.client.agents.create(
        model="openai/fake-model",
        name=CANARY,
        description=CANARY,
        tags=[CANARY],
        metadata={CANARY: CANARY},
        system=f"You are {CANARY}.",
        blocks=[blocks_pb2.Block(label="human", value=CANARY, description=CANARY, tags=[CANARY])],
        tools=[tool.name],
    )
    folder = await mesh.client.folders.create(CANARY, description=CANARY, instructions=CANARY)
    uploaded = await mesh.client.files.upload(folder.id, f"A text about {CANARY}.".encode(), name=f"{CANARY}.md")
    await mesh.client.files.wait(uploaded.file.id, timeout=scaled(60))
    await agent.files.attach(folder.id)
    fake_openai.script = [
        Reply(tool_calls=[("memory_insert", {"label": "human", "new_str": f"It is {CANARY}."})]),
        Reply(tool_calls=[("archival_memory_insert", {"content": f"About {CANARY}.", "tags": [CANARY]})]),
        Reply(tool_calls=[("conversation_search", {"query": CANARY})]),
        Reply(tool_calls=[("sing", {})]),
        Reply(tool_calls=[("open_files", {"file_requests": [{"file_name": f"{CANARY}/{CANARY}.md"}]})]),
        Reply(tool_calls=[("grep_files", {"pattern": CANARY})]),
        f"Yes, {CANARY}.",
        STAYS,
    ]
    result = await turn(agent, f"Remember {CANARY}.")
    assert (result.status, len(result.returns)) == ("COMPLETED", 6)
    await turn(kept, STAYS)
    stub = mesh.stubs
    owned = (await stub.archives.CreateArchive(CreateArchiveRequest(archive=Archive(name=CANARY)))).archive
    await stub.passages.InsertPassages(
        InsertPassagesRequest(archive_id=owned.id, passages=[Passage(text=f"{CANARY} {n}") for n in range(20)])
    )
    await stub.archives.DeleteArchive(DeleteArchiveRequest(archive_id=owned.id))
    loose = (await stub.blocks.CreateBlock(blocks_rpc.CreateBlockRequest(block=blocks_pb2.Block(label=CANARY)))).block
    await stub.blocks.DeleteBlock(blocks_rpc.DeleteBlockRequest(block_id=loose.id))
    await mesh.client.tools.delete(tool.id)
    return agent, folder.id


async def removed(database: Path) -> None:
    """Waits until the service files has removed what is deleted, also in the archive."""
    counts = "SELECT (SELECT count(*) FROM removals) + (SELECT count(*) FROM blobs)"
    async with asyncio.timeout(scaled(60)):
        with closing(sqlite3.connect(database)) as connection:
            while connection.execute(counts).fetchone() != (0,):
                await asyncio.sleep(0.05)


@pytest.mark.timeout(scaled(300))
async def test_no_file_contains_data_of_a_deleted_agent(tmp_path: Path, fake_openai: FakeOpenAI) -> None:
    clock = FrozenClock()
    async with Mesh(tmp_path, openai_base_url=fake_openai.base_url, clock=clock) as mesh:
        agent, folder_id = await plant(mesh, fake_openai)
        assert {name.partition(".")[0].partition("-")[0] for name in holding(tmp_path, CANARY)} >= set(STORE_NAMES)
        await agent.delete()
        clock.advance(2 * 3600)  # the content of an upload is held for an hour
        await mesh.client.folders.delete(folder_id)
        await removed(tmp_path / "files.db")
        for service in STORE_NAMES:
            with pytest.raises(StartupError, match="in use by another process"):
                await maintained_alone(service, tmp_path)
    clock.advance(2 * 86_400)
    reports = await maintained(tmp_path, clock)
    assert holding(tmp_path, CANARY) == set()
    assert {name.partition(".")[0] for name in holding(tmp_path, STAYS)} >= {"orchestrator", "blocks", "recall"}
    for service in STORE_NAMES:
        assert any(line.startswith(f"{service}.db: ") for line in reports[service]), reports[service]
        (forgotten,) = (line for line in reports[service] if line.startswith("idempotency keys deleted"))
        # The keys of runs and of their effects are kept longer.
        least = 0 if service in {"orchestrator", "recall"} else 1
        assert int(forgotten.rpartition(" ")[2]) >= least, (service, forgotten)
    async with Mesh(tmp_path, openai_base_url=fake_openai.base_url, clock=clock) as mesh:
        (left,) = [agent async for agent in mesh.client.agents.list()]
        assert (left.name, (await left.memory()).blocks[0].value) == (STAYS, STAYS)


async def maintained_alone(service: str, directory: Path) -> None:
    config = import_module(f"mnemesh_{service}.config").Config(port=0, data_dir=str(directory))
    async for line in import_module(f"mnemesh_{service}.maintenance").maintain(config):
        raise AssertionError(line)
