"""The audit of everything that agents remember, on a whole mesh, and the command that applies it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import typer
from mnemesh.agents.v1 import agents_pb2
from mnemesh_cli.commands.agents import _extraction
from mnemesh_cli.commands.memory import audit as audit_command
from mnemesh_cli.display.terminal import is_json
from mnemesh_client import Agent, Mnemesh
from mnemesh_client.memory_audit import AuditFinding, apply_finding, audit_memory
from mnemesh_kit.errors import FailedPrecondition, InvalidArgument
from mnemesh_kit.ids import new_id
from mnemesh_testkit.mesh.in_process import Mesh
from structlog.testing import capture_logs

CLEAN = ["Ana lives in Porto", "Ana likes tea", "Ana likes cake", "Bo lives in Lisbon", "Room 12 has a projector"]


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[Mnemesh]:
    """A client of a mesh."""
    async with Mesh(tmp_path, in_memory=True) as mesh:
        yield mesh.client


async def findings(client: Mnemesh, agent: Agent | None = None) -> list[AuditFinding]:
    return [finding async for finding in audit_memory(client, agent)]


async def test_a_passage_that_was_stored_twice_is_deleted_once(client: Mnemesh) -> None:
    agent = await client.agents.create("ada", model="mnemesh/rehearsal")
    other = await client.agents.create("bo", model="mnemesh/rehearsal")
    first = await agent.remember("The boat is in the harbour.")
    for text in ("The boat is in harbour 12.", "It is 5 °C.", "It is -5 °C."):
        await agent.remember(text)
    await other.remember("The boat is in the harbour.")
    again = [await agent.remember(text) for text in ("the boat is in  the harbour", "The boat is in the harbour!")]

    found = await findings(client, agent)
    assert [(finding.kind, finding.ids, finding.kept_id) for finding in found] == [
        ("duplicate", (passage.id,), first.id) for passage in again
    ]
    assert await findings(client) == found
    for finding in (*found, *found):
        await apply_finding(client, finding)
    assert await findings(client) == []
    texts = [passage.text async for passage in client.passages.list(agent_id=agent.id, order="asc")]
    assert texts[:2] == ["The boat is in the harbour.", "The boat is in harbour 12."]
    assert texts[2:] == ["It is 5 °C.", "It is -5 °C."]


async def test_planted_junk_is_found_and_removed(client: Mnemesh, capsys: pytest.CaptureFixture[str]) -> None:
    agent = await client.agents.create("ada", model="mnemesh/rehearsal", blocks={"human": "Likes tea."})
    for text in CLEAN:
        await client.facts.create(text, agent_id=agent.id)
    await agent.remember("The boat is in the harbour.")
    assert await findings(client) == []

    await client.facts.create("Bo moved to Madrid", agent_id=agent.id)
    await client.facts.create("Ana now lives in Porto", agent_id=agent.id)
    await client.facts.create("The password of Ana is hunter2!x", agent_id=agent.id)
    await agent.append("human", "Card 4111 1111 1111 1111.")
    passage = await agent.remember("api_key = 'abcd1234efgh'")
    stray_block = await client.blocks.create("stray")
    stray_archive = await client.archives.create("stray")
    await client.facts.create("Nobody knows", identity_id=new_id("identity"))

    own = await findings(client, agent)
    assert sorted(finding.kind for finding in own) == ["contradiction", "near_duplicate", *["secret"] * 3]
    found = await findings(client)
    assert [finding.resource for finding in found if finding.kind == "orphan"] == ["scope", "block", "archive"]
    assert {stray_block.id, stray_archive.id} <= {id_ for finding in found for id_ in finding.ids}
    printed = json.dumps([finding.as_json() for finding in found])
    for secret in ("hunter2", "4111", "abcd1234efgh"):
        assert secret not in printed

    for finding in found:
        await apply_finding(client, finding)
    assert await findings(client) == []
    for finding in found:
        await apply_finding(client, finding)
    held = sorted([fact.text async for fact in client.facts.list(agent_id=agent.id)])
    assert held == [
        "Ana likes cake",
        "Ana likes tea",
        "Ana now lives in Porto",
        "Bo moved to Madrid",
        "Room 12 has a projector",
        "The password of Ana is [password removed]",
    ]
    everything = [fact.text async for fact in client.facts.list(agent_id=agent.id, include_invalid=True)]
    assert not any("hunter2" in text for text in everything)
    assert "4111" not in (await agent.memory()).blocks[0].value
    assert (await client.passages.get(passage.id)).text == "api_key = '[password removed]'"


async def test_command_reports_and_applies(client: Mnemesh, capsys: pytest.CaptureFixture[str]) -> None:
    agent = await client.agents.create("ada", model="mnemesh/rehearsal")
    await client.facts.create("Ana lives in Lisbon", agent_id=agent.id)
    new = (await client.facts.create("Ana lives in Porto", agent_id=agent.id)).fact

    async def audit(*wanted: str, as_json: bool = False) -> str:
        capsys.readouterr()
        token = is_json.set(as_json)
        with capture_logs():  # the services of this process log to the same output
            await audit_command.__wrapped__(client, "ada", apply=list(wanted), yes=True)
        is_json.reset(token)
        shown = capsys.readouterr()
        return f"{shown.out}{shown.err}".rstrip("\n")

    (line,) = (await audit(as_json=True)).splitlines()
    finding = json.loads(line)
    assert (finding["kind"], finding["action"], finding["kept_id"]) == ("contradiction", "supersede", new.id)
    assert finding["id"] in await audit()
    assert await audit(finding["id"]) == f"supersede: {finding['id']}"
    assert "there is no finding" in await audit(finding["id"])
    assert "no findings" in await audit()
    assert [fact.text async for fact in client.facts.history(new.id)] == ["Ana lives in Lisbon", "Ana lives in Porto"]
    restored = await client.facts.restore(finding["ids"][0], reason="it was Bo")
    assert [fact.text async for fact in client.facts.list(agent_id=agent.id)] == ["Ana lives in Lisbon"]
    assert restored.supersedes_id == new.id

    # A fact supersedes one other at most, so the history of a second one has no link.
    older = (await client.facts.create("Ana lives in Faro", agent_id=agent.id)).fact
    newest = await client.facts.supersede(restored.id, "Ana lives in Rome")
    (line,) = (await audit(as_json=True)).splitlines()
    assert json.loads(line)["kept_id"] == newest.id
    await audit(json.loads(line)["id"])
    closed = await client.facts.get(older.id)
    assert closed.HasField("close_time")
    assert closed.invalid_reason.endswith(f"{newest.id} stays.")

    # A finding that another one made obsolete does not keep the rest from being applied.
    for text in ("Bo paints small red boats there", "Bo paints small red boats", "Bo paints some small red boats"):
        await client.facts.create(text, agent_id=agent.id)
    ids = [json.loads(line)["id"] for line in (await audit(as_json=True)).splitlines()]
    with pytest.raises(typer.Exit):
        await audit(*ids)
    assert f"{ids[1]} was not applied: The fact" in "".join(capsys.readouterr())


async def test_extraction_over_the_wire(client: Mnemesh) -> None:
    agent = await client.agents.create("ada", model="mnemesh/rehearsal")
    assert (await agent.extract_memories()).call_count == 0
    await agent.ask("I live in Porto.")
    with pytest.raises(FailedPrecondition, match="No model can extract facts"):
        await agent.extract_memories()
    with pytest.raises(InvalidArgument) as error:
        await agent.extract_memories(max_calls=101)
    assert error.value.field == "max_calls"
    settings = agents_pb2.MemoryExtractionSettings(
        mode=agents_pb2.MEMORY_EXTRACTION_MODE_PER_TURN,
        frequency=3,
        scope=agents_pb2.MEMORY_EXTRACTION_SCOPE_SENDER,
        max_calls_per_day=0,
    )
    await agent.update(memory_extraction=settings)
    await agent.refresh()
    assert agent.proto.memory_extraction == settings
    assert "episodic_memory_forget" in [tool.name for tool in agent.proto.tools]
    done = await agent.extract_memories()
    assert (done.call_count, done.has_more, done.budget_exhausted) == (0, True, True)
    invalid = agents_pb2.MemoryExtractionSettings(mode=99)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument) as error:
        await agent.update(memory_extraction=invalid)
    assert error.value.field == "agent.memory_extraction.mode"
    await agent.update(memory_extraction=_extraction(0))
    assert not agent.proto.HasField("memory_extraction")
    learner = await client.agents.create("bo", model="mnemesh/rehearsal", memory_extraction=_extraction(2))
    assert learner.proto.memory_extraction.frequency == 2
