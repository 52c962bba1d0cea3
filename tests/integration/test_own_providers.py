"""Agents on a provider that their organization registered: its key is used, is never shown, and is deleted with it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mnemesh.agents.v1 import models_pb2, runs_service_pb2
from mnemesh.agents.v1 import models_service_pb2 as rpc
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, Principal, as_principal
from mnemesh_kit.errors import MnemeshError
from mnemesh_testkit.fakes import server
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Call, Reply
from mnemesh_testkit.mesh.command_line import run_command
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import turn

KEY = "canary/5b1d90-no=known+form_of-keys"
OTHER = Principal("org-00000000-0000-4000-8000-00000000000b", DEFAULT_PRINCIPAL.subject_id)


async def register(mesh: Mesh, fake: FakeOpenAI, name: str = "mine") -> models_pb2.Provider:
    place = models_pb2.Provider(name=name, type="vllm", base_url=fake.base_url)
    request = rpc.CreateProviderRequest(
        provider=place, credentials=models_pb2.ProviderCredentials(api_key=KEY), request_id="registers"
    )
    return (await mesh.client.models.stub.CreateProvider(request)).provider


async def create(mesh: Mesh, **options: Any) -> Any:
    return await mesh.client.agents.create(**{"model": "mine/fake-model", "blocks": {"human": ""}, **options})


@pytest.mark.mesh(in_memory=False)
async def test_key_is_sent_to_the_provider_and_shown_nowhere(
    mesh: Mesh, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with FakeOpenAI(["Hello.", server.status(401, f"{KEY} is not a key, Bearer {KEY}")]) as fake:
        await register(mesh, fake)
        agent = await create(mesh)
        assert (await turn(agent, "Hi")).said == "Hello."
        assert fake.requests[0].headers["authorization"] == f"Bearer {KEY}"
        refused = await turn(agent, "And now?")
        assert refused.error is not None
        assert (refused.stop, refused.error.reason) == ("LLM_API_ERROR", "PROVIDER_AUTH")
        assert "[key] is not a key" in refused.error.message
        shown = [str(event) for event in refused.events]
        runs = mesh.client.runs.stub
        steps = (await runs.ListSteps(runs_service_pb2.ListStepsRequest())).steps
        assert steps
        for step in steps:
            trace = await runs.GetStepTrace(runs_service_pb2.GetStepTraceRequest(step_id=step.id))
            shown += [str(step), str(trace)]
        shown.append(str((await mesh.client.models.stub.ListProviders(rpc.ListProvidersRequest())).providers))
    said = capfd.readouterr()
    assert not [text for text in (*shown, said.out, said.err) if KEY in text]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "orchestrator.db" for path in files)
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    (key_file,) = (path for path in files if path.name == "secrets.key")
    assert key_file.stat().st_mode & 0o777 == 0o600


async def test_provider_is_not_available_to_other_organizations(mesh: Mesh) -> None:
    async with FakeOpenAI(["Hello."]) as fake:
        await register(mesh, fake)
        with as_principal(OTHER), pytest.raises(MnemeshError) as refused:
            await create(mesh)
        assert refused.value.reason == "MODEL_UNKNOWN"
        assert not fake.requests


async def test_provider_deleted_during_a_turn_is_not_called_again(mesh: Mesh) -> None:
    async with FakeOpenAI() as fake:
        created = await register(mesh, fake)
        agent = await create(mesh, type="memgpt_v2", blocks={"human": "", "persona": ""})

        async def answer(_: Any) -> Reply:
            await mesh.client.models.stub.DeleteProvider(rpc.DeleteProviderRequest(provider_id=created.id))
            return Reply(
                tool_calls=[Call("core_memory_append", {"label": "human", "content": "Ada", "request_heartbeat": True})]
            )

        fake.script = answer
        cut = await turn(agent, "I am Ada.")
        assert cut.error is not None
        assert (cut.status, cut.error.reason) == ("FAILED", "MODEL_UNKNOWN")
        assert "mine/fake-model" in cut.error.message
        assert len(fake.requests) == 1
        later = await turn(agent, "Who am I?")
        assert later.error is not None
        assert (later.status, later.error.reason) == ("FAILED", "MODEL_UNKNOWN")
        assert len(fake.requests) == 1
        assert (await agent.refresh()).model == "mine/fake-model"


@pytest.mark.mesh(in_memory=False)
async def test_provider_survives_a_restart_and_a_lost_sealing_key_is_reported(mesh: Mesh, tmp_path: Path) -> None:
    async with FakeOpenAI(["Hello.", "Hello again."]) as fake:
        created = await register(mesh, fake)
        agent = await create(mesh)
        await mesh.restart("orchestrator")
        assert (await turn(agent, "Hi")).said == "Hello."
        assert fake.requests[0].headers["authorization"] == f"Bearer {KEY}"

        (tmp_path / "secrets.key").rename(tmp_path / "lost")
        await mesh.restart("orchestrator")
        lost = await turn(agent, "Still there?")
        assert lost.error is not None
        assert (lost.error.reason, len(fake.requests)) == ("PROVIDER_AUTH", 1)
        assert "stored again" in lost.error.message
        shown = await mesh.client.models.stub.GetProvider(rpc.GetProviderRequest(provider_id=created.id))
        assert "cannot be read" in shown.provider.last_refresh_error
        change = rpc.UpdateProviderRequest(
            provider=models_pb2.Provider(id=created.id), credentials=models_pb2.ProviderCredentials(api_key=KEY)
        )
        await mesh.client.models.stub.UpdateProvider(change)
        assert (await turn(agent, "And now?")).said == "Hello again."


async def command(mesh: Mesh, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """Runs `mnemesh providers …`."""
    line = ("--target", mesh.addresses["orchestrator"], "providers", *arguments)
    return await asyncio.to_thread(run_command, *line, stdin=stdin)


async def test_providers_on_the_command_line(mesh: Mesh) -> None:
    async with FakeOpenAI(models=["one", "two"]) as fake:
        place = ("--type", "vllm", "--base-url", fake.base_url)
        code, created, err = await command(mesh, "create", "mine", *place, "--key-file", "-", stdin=f"{KEY}\n")
        assert (code, err) == (0, "")
        code, listed, _ = await command(mesh, "list")
        row = next(line for line in listed.splitlines() if line.lstrip().startswith("mine"))
        assert row.split() == ["mine", "vllm", "own", "yes", "2", created.strip()]
        assert (await command(mesh, "check", "mine"))[:2] == (0, "MODEL\none\ntwo\n")
        assert KEY not in listed
        code, _, err = await command(mesh, "create", "mine", *place)
        assert (code, "ALREADY_EXISTS" in err, len(err.splitlines())) == (1, True, 1)
    code, _, err = await command(mesh, "check", "mine")
    assert (code, "PROVIDER_UNAVAILABLE" in err) == (1, True)
    assert (await command(mesh, "delete", "mine"))[0] == 1, "the deletion was not confirmed"
    assert (await command(mesh, "delete", "mine", "--yes"))[0] == 0
    code, _, err = await command(mesh, "check", "mine")
    assert (code, "NOT_FOUND" in err) == (3, True)
