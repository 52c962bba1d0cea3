"""Who changed what: the changes of two people, over every API, as the command line exports them."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import httpx
from mnemesh.agents.v1 import models_pb2
from mnemesh.agents.v1 import models_service_pb2 as models_rpc
from mnemesh_client import Mnemesh
from mnemesh_kit.auth import mint_token
from mnemesh_kit.call_context import Principal, Role
from mnemesh_kit.ids import new_id
from mnemesh_testkit.fakes.fake_summarizer import extract_memories
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.mesh.command_line import run_command
from mnemesh_testkit.mesh.in_process import Mesh, MeshThread
from mnemesh_testkit.timeouts import scaled

KEY = "0" * 32
SECRET = "heronKp4tRs9"
FORMULA = "=1+1\x1b[31m"
"""A request id that would run in a spreadsheet, and in a terminal."""
ADA = Principal(new_id("org"), new_id("user"))
BEN = Principal(ADA.organization_id, new_id("user"))
STRANGER = Principal(new_id("org"), new_id("user"))
SERVICES = ("gateway", "orchestrator", "blocks", "recall", "archival", "tools", "files")
TOOL = f'def ping() -> str:\n    """Answers {SECRET}."""\n    return "pong"\n'


def token(caller: Principal, role: Role = Role.ADMIN) -> str:
    return mint_token(KEY.encode(), caller, 600, role=role)


def bearer(caller: Principal, correlation_id: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(caller)}", "X-Request-Id": correlation_id}


def test_changes_over_every_api_are_exported_with_their_subjects(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    settings = {name: {"auth_key_file": str(keys)} for name in SERVICES}
    with MeshThread(Mesh(tmp_path, gateway=True, settings=settings, in_memory=True)) as running:
        addresses = running.mesh.addresses
        agent_id, block_id, tool_id = running.run(_change_everything(addresses))

        def exported(*options: str, caller: Principal = ADA, role: Role = Role.ADMIN) -> tuple[int, str, str]:
            environment = {"MNEMESH_TARGET": addresses["orchestrator"], "MNEMESH_TOKEN": token(caller, role)}
            return run_command("audit", *options, environment=environment)

        code, out, _ = exported("--csv", "--since", "1h")
        assert code == 0
        rows = list(csv.DictReader(io.StringIO(out)))
        assert [row["create_time"] for row in rows] == sorted((row["create_time"] for row in rows), reverse=True)
        rows.reverse()
        seen = [(row["method"].rpartition(".")[2], row["service"], row["subject_id"]) for row in rows]
        assert seen == [
            ("AgentService/CreateAgent", "orchestrator", ADA.subject_id),
            ("BlockService/EditBlock", "blocks", BEN.subject_id),
            ("ToolService/CreateTool", "tools", ADA.subject_id),
            ("BlockService/UpdateBlock", "blocks", BEN.subject_id),
            ("AgentService/DeleteAgent", "orchestrator", BEN.subject_id),
        ]
        assert [row["correlation_id"] for row in rows[2:]] == ["of-the-console", "of-rest", "of-deletion"]
        ids = [row["resource_ids"].split() for row in rows]
        assert agent_id in ids[0]
        assert {agent_id, block_id} <= set(ids[1])
        assert ids[2:] == [[tool_id], [block_id], [agent_id]]
        assert {row["role"] for row in rows} == {"admin"}
        assert rows[2]["request_id"] == "'=1+1\ufffd[31m"
        assert SECRET not in out
        chosen = ("--resource", block_id, "--subject", BEN.subject_id, "--method", "UpdateBlock", "--csv")
        assert [row["correlation_id"] for row in csv.DictReader(io.StringIO(exported(*chosen)[1]))] == ["of-rest"]
        assert len(exported("--csv", caller=STRANGER)[1].splitlines()) == 1
        code, _, error = exported("--service", "letters")
        assert (code, "service must be one of orchestrator" in error) == (1, True)
        code, _, error = exported(role=Role.WRITER)
        assert (code, "requires the role admin" in error) == (1, True)


async def _change_everything(addresses: Any) -> tuple[str, str, str]:
    """Ada creates an agent and a tool; Ben edits its block twice and deletes it. Returns the ids."""
    target = addresses["orchestrator"]
    async with (
        Mnemesh(target, token=token(ADA)) as ada,
        Mnemesh(target, token=token(BEN)) as ben,
        httpx.AsyncClient(base_url=f"http://{addresses['gateway']}", timeout=scaled(60)) as http,
    ):
        agent = await ada.agents.create(name="ada", blocks={"human": SECRET, "persona": ""})
        await agent.ask(f"Remember {SECRET}.")
        (block_id,) = [block.id for block in (await agent.memory()).blocks if block.label == "human"]
        await ben.blocks.append(agent.id, "human", SECRET)
        path: str = "/mnemesh.tools.v1.ToolService/CreateTool"
        body: dict[str, Any] = {"tool": {"source_code": TOOL}, "request_id": FORMULA}
        created = await http.post(path, json=body, headers=bearer(ADA, "of-the-console"))
        assert created.status_code == 200, created.text
        changed = await http.patch(f"/v1/blocks/{block_id}", json={"value": SECRET}, headers=bearer(BEN, "of-rest"))
        assert changed.status_code == 200, changed.text
        path, body = "/mnemesh.agents.v1.AgentService/DeleteAgent", {"agent_id": agent.id}
        deleted = await http.post(path, json=body, headers=bearer(BEN, "of-deletion"))
        assert deleted.status_code == 200, deleted.text
        return agent.id, block_id, created.json()["tool"]["id"]


async def test_extractions_and_refreshed_providers_have_entries(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    def methods(entries: list[Any]) -> list[str]:
        return [entry.method.rpartition("/")[2] for entry in entries]

    place = models_pb2.Provider(name="mine", type="vllm", base_url=fake_openai.base_url)
    provider = (await mesh.client.models.stub.CreateProvider(models_rpc.CreateProviderRequest(provider=place))).provider
    await mesh.client.models.stub.RefreshProvider(models_rpc.RefreshProviderRequest(provider_id=provider.id))
    entries = [entry async for entry in mesh.client.audit.list(resource_id=provider.id)]
    assert methods(entries) == ["RefreshProvider", "CreateProvider"]

    fake_openai.script = ["I see."]
    agent = await mesh.client.agents.create(model="openai/fake-model", blocks={"human": ""})
    await agent.ask("My name is Ada and I live in Paris.")
    fake_openai.script = lambda body: json.dumps(extract_memories(str(body["messages"][-1]["content"])))
    assert (await agent.extract_memories()).call_count == 1
    entries = [entry async for entry in mesh.client.audit.list(resource_id=agent.id, order="asc")]
    assert methods(entries) == ["CreateAgent", "ExtractMemories"]
