"""The gateway while a service that every turn needs is away: the client is told in time, and nothing is stored."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.timeouts import scaled

SECONDS = 10.0
"""docs/gateway.md"""
SYSTEM = {"role": "system", "content": "Be brief."}
HELLO = {"role": "user", "content": "Hello?"}


@pytest.fixture
async def mesh(tmp_path: Path, fake_openai: FakeOpenAI) -> AsyncIterator[Mesh]:
    async with Mesh(tmp_path, openai_base_url=fake_openai.base_url, gateway=True) as running:
        yield running


@pytest.mark.parametrize("service", ["blocks", "recall"])
async def test_chat_is_refused_in_time_while_memory_is_away(mesh: Mesh, fake_openai: FakeOpenAI, service: str) -> None:
    agent = await mesh.client.agents.create("ada", model="openai/fake-model", blocks={"human": "A human."})
    fake_openai.script = ["One.", "Two."]
    chat, letta = "/v1/chat/completions", f"/v1/agents/{agent.id}/messages"
    known: dict[str, Any] = {"model": "ada", "messages": [SYSTEM, HELLO]}
    async with httpx.AsyncClient(base_url=f"http://{mesh.addresses['gateway']}", timeout=120) as http:
        assert (await http.post(chat, json=known)).status_code == 200
        await mesh.stop(service)
        asked = {"role": "user", "content": "Still there?"}
        requests: list[tuple[str, dict[str, Any]]] = [
            (chat, {"model": "ada", "messages": [asked]}),
            (chat, {"model": "ada", "messages": [SYSTEM, asked]}),
            (chat, {"model": "ada", "messages": [SYSTEM, asked], "stream": True}),
            ("/v1/responses", {"model": "ada", "input": "Still there?"}),
            (letta, {"messages": [asked]}),
            (f"{letta}/stream", {"messages": [asked]}),
        ]
        async with asyncio.timeout(scaled(SECONDS)):
            answers = await asyncio.gather(*(http.post(path, json=body) for path, body in requests))
        for (path, _), answer in zip(requests, answers, strict=True):
            assert answer.status_code in (503, 504), (path, answer.text)
        await mesh.start(service)
        assert len([run async for run in mesh.client.runs.list(agent_id=agent.id)]) == 1, "nothing was stored"
        answer = await http.post(chat, json={"model": "ada", "messages": [SYSTEM, asked]})
        assert answer.json()["choices"][0]["message"]["content"] == "Two."
