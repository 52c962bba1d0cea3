"""The panel Runs: the waterfall with the times of each tier, and the runs that a run started."""

import pytest
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import status
from mnemesh_testkit.mesh.in_process import Mesh
from playwright.async_api import Page, expect

from tests.console.steps import open_agent

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.full]


async def test_a_run_shows_its_steps_and_tools_with_their_tiers(page: Page, console_mesh: Mesh) -> None:
    """The run appears without a reload."""
    agent = await open_agent(page, console_mesh, "runs", blocks={"human": ""})
    await expect(page.get_by_text("The agent has not run yet.")).to_be_visible()
    await agent.ask("My name is Ada. Remember that the launch is on Friday.")
    await page.locator(".run-input", has_text="My name is Ada.").click()
    await expect(page.locator(".waterfall .lane-step")).to_have_count(3)
    tools = page.locator(".waterfall .lane-tool")
    await expect(tools).to_have_count(2)
    for name, tier in (("memory_insert", "core"), ("archival_memory_insert", "archival")):
        lane = tools.filter(has=page.get_by_text(name, exact=True))
        await expect(lane.locator(f".tier-{tier}")).to_have_count(1)
    await expect(page.locator(".legend")).to_contain_text("core memory")
    await expect(page.locator(".legend")).to_contain_text("model")
    await expect(page.locator(".step .step")).to_have_count(3)


async def test_a_failed_run_names_its_reason_and_the_next_step(
    page: Page, console_mesh: Mesh, fake_model: FakeOpenAI
) -> None:
    fake_model.script = [status(401, "Incorrect API key provided.")]
    agent = await open_agent(page, console_mesh, "runs", model="openai/fake-model")
    async for _ in agent.send("Hello."):
        pass
    await page.get_by_label("Which runs").select_option("cancelled")
    await expect(page.get_by_text("There is no such run.")).to_be_visible()
    await page.get_by_label("Which runs").select_option("failed")
    await page.locator(".run-input", has_text="Hello.").click()
    await expect(page.get_by_role("alert").first).to_contain_text("PROVIDER_AUTH")
    await expect(page.get_by_role("alert").first).to_contain_text("Check the key")
    await expect(page.get_by_role("button", name="Retry")).to_be_visible()


async def test_a_sleeptime_run_is_beside_its_foreground(page: Page, console_mesh: Mesh) -> None:
    agent = await open_agent(page, console_mesh, "runs", blocks={"human": ""}, enable_sleeptime=True)
    partner = await console_mesh.client.agents.find(f"{agent.proto.name}-sleeptime")
    for text in ("My name is Ada.", "I like tea.", "I like milk.", "I like bread.", "I like cheese."):
        await agent.ask(text)
    started = page.locator(".run-input", has_text="I like cheese.")
    await started.click()
    lane = page.locator(".waterfall .lane-run")
    await expect(lane).to_contain_text(f"{partner.proto.name}, sleeptime")
    await expect(lane.locator(".tier-model").first).to_be_visible()
    region = page.get_by_role("region", name="Runs that it started")
    await expect(region).to_contain_text("completed")
    await region.get_by_role("link", name=partner.proto.name).click()
    await expect(page.get_by_role("heading", name=partner.proto.name)).to_be_visible()
    await page.locator(".step summary").first.click()
    await expect(page.get_by_role("link", name=agent.proto.name, exact=True)).to_be_visible()
