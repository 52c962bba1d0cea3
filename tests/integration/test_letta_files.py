"""Agent files that a Letta server 0.16.7 exported are imported, exported again in Letta's form, and imported again."""

import json
from collections.abc import AsyncIterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_letta.files.transfer import LettaImport, export_letta
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.mesh.in_process import Mesh

DATA = Path(__file__).parents[1] / "letta" / "data"
GENERATED = ("id", "agent_id", "otid", "created_at", "name", "batch_item_id", "type", "tool_call_id", "sender_id")


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    async with (
        FakeOpenAI(models=("gpt-4o-mini",)) as provider,
        Mesh(tmp_path, openai_base_url=provider.base_url, in_memory=True) as mesh,
    ):
        yield mesh


def of(name: str) -> dict[str, Any]:
    """An agent file."""
    data: dict[str, Any] = json.loads((DATA / name).read_text())
    return data


async def test_an_agent_file_comes_back_as_it_was(mesh: Mesh) -> None:
    given = of("pilot.af")
    first = LettaImport(mesh.client, given, "first")

    pilot, clerk = await first.run()

    assert [pilot.name, clerk.name] == ["Pilot", "Clerk"]
    assert [note for note in first.notes if "HARBOUR_KEY" not in note and "The embedder" not in note] == []
    exported = await export_letta(mesh.client, [pilot.id, clerk.id])
    same_agents(given, exported)
    again = await LettaImport(mesh.client, exported, "second").run()
    assert {agent.id for agent in again}.isdisjoint({pilot.id, clerk.id})
    same_agents(exported, await export_letta(mesh.client, [agent.id for agent in again]))
    repeated = await LettaImport(mesh.client, given, "first").run()
    assert [agent.id for agent in repeated] == [pilot.id, clerk.id]
    assert len([agent async for agent in mesh.client.agents.list()]) == 4


def same_agents(given: dict[str, Any], found: dict[str, Any]) -> None:
    """Both files have the same agents, with messages, windows, blocks, tools, rules, folders, files and groups."""
    assert len(given["agents"]) == len(found["agents"])
    for before, after in zip(given["agents"], found["agents"], strict=True):
        for key in ("name", "description", "agent_type", "system", "tags", "metadata", "timezone", "max_files_open"):
            assert after[key] == before[key], key
        assert sorted(map(rule, after["tool_rules"])) == sorted(map(rule, before["tool_rules"]))
        for key in ("model", "handle", "context_window", "temperature"):
            assert after["llm_config"][key] == before["llm_config"][key]
        assert [plain(message) for message in after["messages"]] == [plain(message) for message in before["messages"]]
        assert positions(after) == positions(before)
        for kind in ("tools", "blocks", "sources"):
            singular = f"{kind[:-1]}_ids"
            assert named(found, kind, after[singular]) == named(given, kind, before[singular])
    assert files(found) == files(given)
    groups = [(len(group["agent_ids"]), group["manager_config"]["manager_type"]) for group in given["groups"]]
    assert [(len(group["agent_ids"]), group["manager_config"]["manager_type"]) for group in found["groups"]] == groups


def rule(value: dict[str, Any]) -> str:
    """A rule without what is empty."""
    return json.dumps({key: item for key, item in value.items() if item is not None}, sort_keys=True)


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """What a message says, without ids that an import chooses, and without the envelope's time and spaces."""
    result = {key: value for key, value in deepcopy(message).items() if key not in GENERATED and value}
    if message["role"] == "tool":
        result["content"] = "the first return"
        result["tool_returns"] = [envelope(item) for item in message["tool_returns"]]
    if message["role"] == "approval":
        result.pop("approval_request_id", None)
    for part in result["content"] if isinstance(result.get("content"), list) else ():
        if part["type"] == "image":
            part["source"] = part["source"]["data"]
    return result


def envelope(item: dict[str, Any]) -> list[Any]:
    """A return: its call, status, output, and what its envelope holds beside the time."""
    inner = json.loads(item["func_response"])
    message = inner["message"] if isinstance(inner["message"], str) else json.dumps(inner["message"])
    return [item["tool_call_id"], item["status"], item["stdout"] or [], item["stderr"] or [], inner["status"], message]


def positions(agent: dict[str, Any]) -> list[int]:
    """The window as positions of messages."""
    ids = [message["id"] for message in agent["messages"]]
    return [ids.index(id_) for id_ in agent["in_context_message_ids"]]


def named(data: dict[str, Any], kind: str, ids: list[str]) -> list[str]:
    """What an agent holds, by name or label, with text or source."""
    rows = {row["id"]: row for row in data[kind]}
    return sorted(
        json.dumps([rows[id_].get(key) for key in ("name", "label", "value", "limit", "read_only", "source_code")])
        for id_ in ids
    )


def files(data: dict[str, Any]) -> list[tuple[str, str]]:
    """The files with their texts."""
    return sorted((file["file_name"], file["content"]) for file in data["files"])


async def test_words_of_a_user_and_results_of_tools_lose_their_envelopes(mesh: Mesh) -> None:
    pilot, _ = await LettaImport(mesh.client, of("pilot.af"), "first").run()

    messages = [message async for message in mesh.client.messages.list(agent_id=pilot.id)]

    returns = [item for message in messages for item in message.tool_returns]
    denied = [item.content[0].text.text for item in returns if "denied" in item.content[0].text.text]
    assert denied == ["Error: request to call tool denied. User reason: That day is still needed."]
    assert all(item.name for item in returns)
    decisions = [message for message in messages if message.approval_decisions]
    requests = {message.id for message in messages if message.role == message_pb2.ROLE_APPROVAL and message.tool_calls}
    assert [item.approval_decisions[0].WhichOneof("decision") for item in decisions] == ["approve", "deny"]
    assert {item.approval_request_id for item in decisions} <= requests


async def test_a_file_without_agents_that_can_be_read_is_refused_before_anything_is_imported(mesh: Mesh) -> None:
    for change, field in (
        (lambda data: data.pop("agents"), "agents"),
        (lambda data: data.update(agents=["Pilot"]), "agents[0]"),
    ):
        data = of("pilot.af")
        change(data)
        with pytest.raises(InvalidArgument) as caught:
            await LettaImport(mesh.client, data, f"broken {field}").run()
        assert caught.value.metadata["field"].startswith(field)
        assert [agent async for agent in mesh.client.agents.list()] == []
        assert [folder async for folder in mesh.client.folders.list()] == []


async def test_what_the_mesh_refuses_is_left_out_and_the_rest_is_imported(mesh: Mesh) -> None:
    data = of("pilot.af")
    data["agents"][1]["name"] = "Clerk" * 1_000
    data["blocks"].append({"id": "block-99", "label": "log", "value": "Calm sea."})
    data["tools"].append(
        {
            "id": "tool-99",
            "name": "broken",
            "tool_type": "custom",
            "source_code": "def broken(x): return x",
            "json_schema": 7,
        }
    )
    data["tools"].append({"id": "tool-98", "name": "weather", "tool_type": "external_mcp", "json_schema": {}})
    data["agents"][0]["tool_ids"] += ["tool-99", "tool-98"]
    data["groups"] = []
    twice = json.dumps(json.dumps(data)).encode()
    imported = LettaImport(mesh.client, twice, "parts")

    (pilot,) = await imported.run()

    notes = "\n".join(imported.notes)
    assert "is not imported: agent.name must" in notes
    assert "no MCP tool with this name" in notes
    assert "broken: " in notes
    assert [block.value async for block in mesh.client.blocks.list(label="log")] == ["Calm sea."]
    names = [tool.name for tool in pilot.tools]
    assert {"weather", "broken"}.isdisjoint(names)


async def test_a_folder_without_files_is_left_out_of_a_file(mesh: Mesh) -> None:
    data = of("pilot.af")
    data["agents"][0]["source_ids"].append("source-9")  # Letta exports no source of it.
    imported = LettaImport(mesh.client, data, "empty folder")

    pilot, _ = await imported.run()

    assert [note for note in imported.notes if "source-9" in note] == [
        "A folder of Pilot: the file has no name of source-9."
    ]
    assert [source["name"] for source in (await export_letta(mesh.client, [pilot.id]))["sources"]] == ["Pilot books"]
