"""An import keeps the vectors of passages where the archive has the same embedder: the embedder is not called."""

import gzip
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mnemesh.agents.v1 import agent_records_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2
from mnemesh.archival.v1 import passages_service_pb2 as archival
from mnemesh_cli.agent_exports import vector_lines, vector_report
from mnemesh_cli.commands import export_import
from mnemesh_client import Agent
from mnemesh_client.errors import InvalidArgument
from mnemesh_testkit.fakes.embedders import FakeEmbedder
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.plugin import sampled

from .connections import Opened
from .letta_database import DUMP, migrate, rows

TEXTS = ["an old oak", "a young elm", "an ash"]
KEPT, OTHER, NONE = archival.VECTOR_USE_KEPT, archival.VECTOR_USE_OTHER_EMBEDDER, archival.VECTOR_USE_UNSPECIFIED
Records = list[pb.AgentRecord]


@pytest.fixture
async def embedder() -> AsyncIterator[FakeEmbedder]:
    async with FakeEmbedder(dimension=24) as server:
        yield server


@asynccontextmanager
async def meshed(
    directory: Path, embedder: FakeEmbedder, handle: str = "acme/embed-1", openai: str | None = None
) -> AsyncIterator[Mesh]:
    """A mesh whose archives have an embedder over HTTP."""
    directory.mkdir()
    http = {"embedder": handle, "embedder_base_url": embedder.url, "embedder_dimension": embedder.dimension}
    settings = {"archival": http, "orchestrator": http}
    async with Mesh(directory, openai_base_url=openai, settings=settings, in_memory=True) as mesh:
        yield mesh


async def remembering(mesh: Mesh) -> Agent:
    """Returns an agent with passages."""
    agent = await mesh.client.agents.create("ada", model="mnemesh/rehearsal")
    await mesh.client.passages.insert_many(TEXTS, agent_id=agent.id)
    return agent


async def vectors_of(mesh: Mesh, agent_id: str) -> dict[str, list[float]]:
    listed = mesh.client.passages.list(agent_id=agent_id, vectors=True)
    return {passage.text: list(passage.embedding) async for passage in listed}


def connected(mesh: Mesh) -> Any:
    """Returns the connection of a command."""
    return Opened(mesh.client)


def uses(response: agents_service_pb2.ImportAgentResponse) -> dict[int, int]:
    return {item.use: item.passages for item in response.vector_uses}


async def exported(mesh: Mesh, agent: Agent, *, vectors: bool) -> Records:
    return [record async for record in mesh.client.agents.export(agent.id, vectors=vectors)]


async def test_bundle_with_vectors_is_not_embedded_again(tmp_path: Path, embedder: FakeEmbedder) -> None:
    async with meshed(tmp_path / "one", embedder) as mesh:
        agent = await remembering(mesh)
        records = await exported(mesh, agent, vectors=True)
        expected = await vectors_of(mesh, agent.id)
    embedder.texts.clear()
    async with meshed(tmp_path / "two", embedder) as mesh:
        response = await mesh.client.agents.import_(records)
        assert uses(response) == {KEPT: 3}
        assert await vectors_of(mesh, response.agent.id) == expected
        assert [each for each in embedder.texts if each in TEXTS] == []
        again = await exported(mesh, await mesh.client.agents.get(response.agent.id), vectors=True)
    vectors = {record.passage.passage.text: record.passage.passage.embedding for record in again}
    assert {text: list(vectors[text]) for text in TEXTS} == expected


async def test_bundle_without_vectors_is_embedded(tmp_path: Path, embedder: FakeEmbedder) -> None:
    async with meshed(tmp_path / "one", embedder) as mesh:
        records = await exported(mesh, await remembering(mesh), vectors=False)
    assert not any(record.passage.passage.embedding for record in records)
    embedder.texts.clear()
    async with meshed(tmp_path / "two", embedder) as mesh:
        response = await mesh.client.agents.import_(records)
        assert uses(response) == {NONE: 3}
        assert sorted(embedder.texts) == sorted(TEXTS)


async def test_bundle_of_another_embedder_is_embedded_and_the_response_says_so(
    tmp_path: Path, embedder: FakeEmbedder
) -> None:
    async with meshed(tmp_path / "one", embedder) as mesh:
        records = await exported(mesh, await remembering(mesh), vectors=True)
    embedder.texts.clear()
    async with meshed(tmp_path / "two", embedder, "acme/embed-2") as mesh:
        options = agents_service_pb2.ImportOptions(request_id="r1", embedder="acme/embed-2")
        response = await mesh.client.agents.import_(records, options)
        assert uses(response) == {OTHER: 3}
        assert sorted(embedder.texts) == sorted(TEXTS)
        again = await mesh.client.agents.import_(records, options)
        assert (again.replayed, uses(again)) == (True, {OTHER: 3})


async def test_bad_vector_is_refused_with_its_record(tmp_path: Path, embedder: FakeEmbedder) -> None:
    async with meshed(tmp_path / "one", embedder) as mesh:
        agent = await remembering(mesh)
        records = await exported(mesh, agent, vectors=True)
        number = next(index for index, each in enumerate(records) if each.passage.passage.text == TEXTS[1])
        records[number].passage.passage.embedding[5] = float("nan")
        with pytest.raises(InvalidArgument) as refused:
            await mesh.client.agents.import_(records)
        assert refused.value.metadata["record"] == str(number + 1)
        assert refused.value.field == "passage.embedding"
        assert [each.id async for each in mesh.client.agents.list()] == [agent.id]


@pytest.mark.parametrize("form", ["file", "directory", "directory, into an existing agent"])
async def test_exported_files_have_vectors_if_requested(tmp_path: Path, embedder: FakeEmbedder, form: str) -> None:
    path = tmp_path / "ada.mnemesh" if form == "file" else tmp_path / "files"
    async with meshed(tmp_path / "one", embedder) as mesh:
        agent, opened = await remembering(mesh), connected(mesh)
        expected = await vectors_of(mesh, agent.id)
        if form == "file":
            await export_import._export_file(opened, agent.id, path, with_vectors=True)
        else:
            await export_import._export(opened, agent.id, path, None, traces_only=False, with_vectors=True)
    embedder.texts.clear()
    async with meshed(tmp_path / "two", embedder) as mesh:
        opened, existing = connected(mesh), None
        if form == "file":
            await export_import._open_and_import(opened, path, None)
        else:
            if form != "directory":
                existing = (await mesh.client.agents.create("eve", model="mnemesh/rehearsal")).id
            await export_import._import(opened, path, existing, None, window=True)
        (imported,) = [each.id async for each in mesh.client.agents.list()]
        assert await vectors_of(mesh, imported) == expected
        assert [each for each in embedder.texts if each in TEXTS] == []


@pytest.mark.parametrize("handle", sampled(["openai/text-embedding-3-small", "proxy/text-embedding-3-small"], 2))
async def test_letta_vectors_of_the_same_model_are_kept(tmp_path: Path, embedder: FakeEmbedder, handle: str) -> None:
    database = tmp_path / "letta.db"
    database.write_bytes(gzip.decompress(DUMP.read_bytes()))
    async with (
        FakeOpenAI(models=("gpt-4o-mini",)) as provider,
        meshed(tmp_path / "mesh", embedder, handle, provider.base_url) as mesh,
    ):
        report = await migrate(mesh, database)
        assert vector_report(report.vector_uses, report.without_vector) == {"kept": 6, "embedded_again": []}
        assert vector_lines(report.vector_uses) == ["vectors kept: 6 passages"]
        stored = rows(database, "SELECT text, embedding FROM archival_passages")
        assert not {text for text, _ in stored} & set(embedder.texts)
        found = {each.text: list(each.embedding) async for each in mesh.client.passages.list(vectors=True)}
        for text, padded in stored:
            vector = struct.unpack("<24f", padded[:96])
            norm = sum(value * value for value in vector) ** 0.5
            assert found[text] == pytest.approx([value / norm for value in vector], abs=1e-6)


async def test_letta_vectors_of_another_model_are_embedded_again(tmp_path: Path, embedder: FakeEmbedder) -> None:
    database = tmp_path / "letta.db"
    database.write_bytes(gzip.decompress(DUMP.read_bytes()))
    async with (
        FakeOpenAI(models=("gpt-4o-mini",)) as provider,
        meshed(tmp_path / "mesh", embedder, "acme/embed-1", provider.base_url) as mesh,
    ):
        report = await migrate(mesh, database)
        reason = "the mesh has no embedder with the model openai/text-embedding-3-small"
        assert vector_report(report.vector_uses, report.without_vector) == {
            "kept": 0,
            "embedded_again": [{"passages": 6, "reason": reason}],
        }
        texts = {text for (text,) in rows(database, "SELECT text FROM archival_passages")}
        assert texts <= set(embedder.texts)
