"""What the tests of the console do first: they open a panel of a new agent, and send a message."""

from uuid import uuid4

from mnemesh_client import Agent
from mnemesh_testkit.mesh.in_process import Mesh
from playwright.async_api import Page, expect


async def open_agent(page: Page, mesh: Mesh, panel: str = "chat", **settings: object) -> Agent:
    """Creates an agent and opens one of its panels."""
    created = await mesh.client.agents.create(f"agent-{uuid4().hex[:8]}", **settings)  # type: ignore[arg-type]
    await page.goto(f"/console/#/agents/{created.id}/{panel}")
    await expect(page.get_by_role("heading", name=created.name)).to_be_visible()
    return created


async def send(page: Page, text: str) -> None:
    """Writes a message in the chat."""
    await page.get_by_placeholder("Message to").fill(text)
    await expect(page.get_by_role("button", name="Send")).to_be_enabled()
    await page.keyboard.press("Enter")
