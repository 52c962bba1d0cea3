"""What the doctor and the start of a mesh say about model providers: they ask them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from mnemesh_cli.commands import doctor
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.mesh.in_process import Mesh, MeshThread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .command_line import CommandLine


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshThread]:
    """A mesh whose operator has configured nothing about models."""
    settings = {"orchestrator": {"model": None}}
    mesh = Mesh(tmp_path_factory.mktemp("mesh"), settings=settings, gateway=True, in_memory=True)
    with MeshThread(mesh) as running:
        yield running


class Vendor(FakeOpenAI):
    """A provider whose second list of models is another one: refused, late or not there."""

    def __init__(self) -> None:
        super().__init__(routes=[Route("/vendor/v1/models", self.answer)])
        self.status = 200
        self.answers = asyncio.Event()

    async def answer(self, _: Request) -> Response:
        """Answers as the test says."""
        if self.status == 0:
            await self.answers.wait()
        error = {"error": {"message": "Incorrect API key provided.", "code": "invalid_api_key"}}
        return JSONResponse(error if self.status >= 400 else {"data": [{"id": "small"}]}, self.status or 200)


def test_doctor_asks_each_provider(
    cli: CommandLine, running: MeshThread, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    vendor = Vendor()
    running.run(vendor.__aenter__())
    key = tmp_path / "key"
    key.write_text("sk-test")
    url = f"{vendor.origin}/vendor/v1"
    options = ("--type", "openai_compatible", "--base-url", url, "--key-file", str(key))

    def says() -> str:
        _, out, err = cli.run("doctor", "--data-dir", str(tmp_path))
        assert err == ""
        return next(line for line in out.splitlines() if "provider vendor" in line)

    try:
        code, _, err = cli.run("providers", "create", "vendor", *options)
        assert code == 0
        assert "created without a model now get vendor/small, not mnemesh/rehearsal" in err
        assert says() == "✓ provider vendor answers; models: 1"
        vendor.status = 401
        refused = says()
        assert refused.startswith("✗ provider vendor refused the API key.")
        assert "mnemesh providers update vendor --key-file" in refused
        vendor.status = 404
        assert says().startswith("· provider vendor gives no list of models")
        vendor.status = 0
        monkeypatch.setattr(doctor, "_PROVIDER_SECONDS", 0.2)
        assert says() == "✗ provider vendor did not list its models in time"
        _, _, err = cli.run("providers", "update", "vendor", "--disable")
        assert "now get mnemesh/rehearsal, not vendor/small" in err
        monkeypatch.setenv("MNEMESH_GATEWAY_TARGET", running.mesh.addresses["gateway"])
        code, out, _ = cli.run("doctor", "--data-dir", str(tmp_path))
        assert (code, "provider vendor" in out) == (0, False), out
    finally:
        running.run(set_event(vendor.answers))
        cli.run("providers", "delete", "vendor", "--yes")
        running.run(vendor.__aexit__(None, None, None))


async def set_event(event: asyncio.Event) -> None:
    """Sets an event in the loop of the mesh."""
    event.set()
