"""Fixtures: a mesh with a gateway over real HTTP, and OpenAI's SDK as its client."""

from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
import pytest_asyncio
from mnemesh_client import Agent
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.mesh.in_process import Mesh


@pytest_asyncio.fixture
async def mesh(tmp_path: Path, fake_openai: FakeOpenAI, request: pytest.FixtureRequest) -> AsyncIterator[Mesh]:
    """A mesh with a gateway and databases in memory; `@pytest.mark.mesh(...)` changes it."""
    arguments = {"in_memory": True}
    arguments |= {key: value for marker in request.node.iter_markers("mesh") for key, value in marker.kwargs.items()}
    async with Mesh(tmp_path, openai_base_url=fake_openai.base_url, gateway=True, **arguments) as running:
        yield running


@pytest.fixture
def base_url(mesh: Mesh) -> str:
    """The address of the gateway."""
    return f"http://{mesh.addresses['gateway']}"


@pytest_asyncio.fixture
async def sdk(base_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's SDK, without retries of its own."""
    async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="sk-any", max_retries=0) as client:
        yield client


@pytest_asyncio.fixture
async def agent(mesh: Mesh) -> Agent:
    """An agent named ada that speaks in plain text, without tools."""
    return await mesh.client.agents.create(
        "ada", model="openai/fake-model", blocks={"human": "Nothing yet."}, include_base_tools=False
    )
