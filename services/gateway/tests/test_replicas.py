"""Several gateways of one mesh, a gateway that stops while it answers, and TLS."""

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from mnemesh_client import Agent
from mnemesh_gateway.config import Config
from mnemesh_gateway.http.listener import tls_context
from mnemesh_gateway.wiring import assemble
from mnemesh_kit.config import StartupError
from mnemesh_kit.health import http_status, http_version
from mnemesh_kit.server import RunningServer
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh, certificates
from mnemesh_testkit.timeouts import scaled


@asynccontextmanager
async def gateway(mesh: Mesh, **settings: Any) -> AsyncIterator[tuple[RunningServer, openai.AsyncOpenAI]]:
    """Another gateway of the mesh, and a client of it."""
    targets = {f"{name}_target": mesh.addresses[name] for name in ("orchestrator", "blocks", "recall", "archival")}
    config = Config(port=0, data_dir=str(mesh.directory), **{"shutdown_grace_seconds": 5, **targets, **settings})
    server = RunningServer()
    await server.start(await assemble(config), config)
    async with openai.AsyncOpenAI(base_url=f"http://{server.address}/v1", api_key="any", max_retries=0) as sdk:
        yield server, sdk
    await server.stop()


async def test_replicas_share_sessions(
    mesh: Mesh, sdk: openai.AsyncOpenAI, agent: Agent, fake_openai: FakeOpenAI
) -> None:
    fake_openai.script = lambda _: Reply(text="Aye.")
    session = {"X-Session-Id": "web"}

    async def ask(client: openai.AsyncOpenAI, instructions: str, text: str) -> tuple[str, str]:
        messages: Any = [{"role": "system", "content": instructions}, {"role": "user", "content": text}]
        answer = await client.chat.completions.create(model="ada", messages=messages, extra_headers=session)
        return answer.id, str(fake_openai.requests[-1].body["messages"])

    async with gateway(mesh) as (_, other):
        first = [
            await ask(sdk, "Be kind.", "One"),
            await ask(other, "Rhyme.", "Two"),
            await ask(sdk, "Be kind.", "Three"),
        ]
        assert ["Be kind." in prompt for _, prompt in first] == [True, False, True]
        assert "One" in first[1][1], "the window is shared"
        again = await ask(other, "Be kind.", "Three")
        assert again[0] == first[2][0], "the repeat through the other gateway is the same turn"
        together = await asyncio.gather(ask(sdk, "Be kind.", "Four"), ask(other, "Be kind.", "Four"))
        assert together[0][0] == together[1][0]
    assert len(fake_openai.requests) == 4


async def test_stopping_gateway_lets_open_streams_end(mesh: Mesh, agent: Agent, fake_openai: FakeOpenAI) -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    gates[0].set()
    fake_openai.script = lambda _: Reply(text="A long answer in two parts.", gates=gates)
    async with gateway(mesh) as (server, sdk):
        messages: Any = [{"role": "user", "content": "Tell me."}]
        stream = await sdk.chat.completions.create(model="ada", messages=messages, stream=True)
        said = ""
        async for chunk in stream:
            said += chunk.choices[0].delta.content or ""
            if said:
                break
        stopping = asyncio.create_task(server.stop())
        while await http_status(server.address, 5) != "UNAVAILABLE":
            await asyncio.sleep(0)
        gates[1].set()
        async for chunk in stream:
            said += chunk.choices[0].delta.content or ""
        assert (said, chunk.choices[0].finish_reason) == ("A long answer in two parts.", "stop")
        await stopping


@pytest.mark.filterwarnings("default::ResourceWarning")
async def test_tls_with_a_certificate_that_is_replaced(mesh: Mesh, agent: Agent, tmp_path: Path) -> None:
    issued, other = certificates(tmp_path / "one"), certificates(tmp_path / "two")
    files = [str(issued / "gateway" / name) for name in ("tls.crt", "tls.key")]

    async def models(server: RunningServer, authority: Path) -> Any:
        context = ssl.create_default_context(cafile=authority / "ca.crt")
        async with httpx.AsyncClient(
            base_url=f"https://{server.address}", verify=context, timeout=scaled(60)
        ) as client:
            return (await client.get("/v1/models")).json()["data"][0]["id"]

    async with gateway(mesh, tls_cert_file=files[0], tls_key_file=files[1]) as (server, _):
        assert await models(server, issued) == "ada"
        assert await http_status(server.address, 5) == "SERVING"
        assert await http_version(server.address, 5)
        with pytest.raises(httpx.ConnectError):
            await models(server, other)
        shutil.copytree(other / "gateway", issued / "gateway", dirs_exist_ok=True)
        assert await models(server, other) == "ada"


async def test_wrong_certificate_of_the_api_is_one_line_that_names_the_setting(tmp_path: Path) -> None:
    issued = certificates(tmp_path)
    for fields, message in (
        ({"tls_cert_file": "/none"}, "^MNEMESH_GATEWAY_TLS_KEY_FILE must be set with MNEMESH_GATEWAY_TLS_CERT_FILE"),
        ({"tls_key_file": "/none"}, "^MNEMESH_GATEWAY_TLS_CERT_FILE must be set with MNEMESH_GATEWAY_TLS_KEY_FILE"),
        (
            {
                "tls_cert_file": str(issued / "gateway" / "tls.crt"),
                "tls_key_file": str(issued / "blocks" / "tls.key"),
            },
            r"^MNEMESH_GATEWAY_TLS_KEY_FILE \S+ is not the key of the certificate \S+ \(MNEMESH_GATEWAY_TLS_CERT_FILE",
        ),
    ):
        with pytest.raises(StartupError, match=message):
            tls_context(Config(**fields))
