"""The first agent of `mnemesh up --chat`, and the start of a mesh with an unknown model."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mnemesh_cli.commands import foreground, model_report
from mnemesh_cli.commands.first_agent import ensure_first_agent
from mnemesh_cli.supervisor.config import mesh_config
from mnemesh_client import Mnemesh
from mnemesh_kit.config import StartupError

if TYPE_CHECKING:
    from mnemesh_testkit.mesh.fake_mesh import FakeMesh

REHEARSAL = "mnemesh/rehearsal"


async def test_first_agent_is_created_once(mnemesh: Mnemesh, tmp_path: Path) -> None:
    agent, created = await ensure_first_agent(mnemesh, REHEARSAL, tmp_path, override=False)
    again, found = await ensure_first_agent(mnemesh, REHEARSAL, tmp_path, override=False)

    assert created == f"created the first agent, mnemesh ({agent.id})"
    assert found == f"using agent mnemesh ({agent.id}, {REHEARSAL})"
    assert again.id == agent.id
    assert not (tmp_path / "first-agent.request").exists()


async def test_interrupted_creation_is_repeated_with_its_request_id(
    mesh: "FakeMesh", mnemesh: Mnemesh, tmp_path: Path
) -> None:
    (tmp_path / "first-agent.request").write_text("interrupted")

    agent, _ = await ensure_first_agent(mnemesh, REHEARSAL, tmp_path, override=False)

    assert mesh.orchestrator.created == {"interrupted": agent.id}


@pytest.mark.parametrize(
    ("previous", "served", "override", "expected"),
    [
        (REHEARSAL, True, False, "openai/small"),
        ("openai/large", True, False, "openai/large"),
        ("openai/large", False, False, "openai/small"),
        ("openai/large", True, True, "openai/small"),
    ],
)
async def test_first_agent_keeps_a_served_model(
    mesh: "FakeMesh", mnemesh: Mnemesh, tmp_path: Path, previous: str, served: bool, override: bool, expected: str
) -> None:
    await ensure_first_agent(mnemesh, previous, tmp_path, override=False)
    mesh.orchestrator.unknown_models = set() if served else {previous}

    agent, line = await ensure_first_agent(mnemesh, "openai/small", tmp_path, override=override)

    assert agent.model == expected
    assert ("now with openai/small instead of" in line) == (expected != previous)


async def test_unknown_model_ends_a_chat_but_not_a_mesh(
    mesh: "FakeMesh", monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []
    said = asyncio.Event()

    class FakeSupervisor:
        def __init__(self, *_: object, **__: object) -> None: ...

        async def start(self) -> None:
            calls.append("start")

        def declare_ready(self) -> None:
            calls.append("ready")

        async def describe_models(self) -> None:
            await model_report.describe_models(mesh_config(None))
            said.set()

        async def stop(self) -> None:
            calls.append("stop")

        def kill(self) -> None:
            calls.append("kill")

    mesh.orchestrator.unknown_models = {""}
    monkeypatch.setattr(foreground, "Supervisor", FakeSupervisor)
    monkeypatch.setattr(model_report, "_client", lambda *_: mesh.client())

    with pytest.raises(StartupError, match=r"MNEMESH_MODEL cannot be used\. There is no model"):
        await foreground.run_mesh(mesh_config(None), processes=False, chat=True)
    assert calls == ["start", "ready", "stop", "kill"]

    calls.clear()
    capsys.readouterr()
    running = asyncio.create_task(foreground.run_mesh(mesh_config(None), processes=False, chat=False))
    await said.wait()
    assert calls == ["start", "ready"]
    assert "MNEMESH_MODEL cannot be used. There is no model" in capsys.readouterr().err
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
