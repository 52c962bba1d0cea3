"""The panel Context: sections, a preview, the requests of steps, and compactions."""

import pytest
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.mesh.in_process import Mesh
from playwright.async_api import Page, expect

from tests.console.steps import open_agent

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.full]


async def test_context_shows_sections_a_preview_and_the_requests_of_steps(page: Page, console_mesh: Mesh) -> None:
    agent = await open_agent(page, console_mesh, "context", blocks={"human": "Likes tea."})
    await page.get_by_role("button", name="Core memory").click()
    await expect(page.get_by_label("Core memory", exact=True)).to_contain_text("Likes tea.")
    await expect(page.get_by_text("has not called its model yet")).to_be_visible()
    await page.get_by_role("textbox", name="Message").fill("What would you get?")
    await page.get_by_role("button", name="Preview the request").click()
    await expect(page.get_by_label("Request to the provider")).to_contain_text("What would you get?")

    await agent.ask("My name is Ada.")
    await page.reload()
    await page.locator(".step summary").first.click()
    await expect(page.get_by_label("Request to the provider")).to_contain_text('"model": "rehearsal"')
    await expect(page.get_by_label("Answer of the provider")).to_contain_text("I wrote your name")


async def test_a_compaction_shows_what_left_the_window_and_what_took_its_place(
    page: Page, console_mesh: Mesh, fake_model: FakeOpenAI
) -> None:
    """A trial changes nothing."""
    words = ("apples", "bread", "cheese", "dates", "eggs", "figs")
    fake_model.script = [*(f"I note {word}." for word in words), "They bought food.", "They bought food."]
    agent = await open_agent(page, console_mesh, "context", model="openai/fake-model")
    await expect(page.get_by_text("The window has not been compacted yet.")).to_be_visible()
    for word in words:
        await agent.ask(f"Buy {word}.")
    await page.reload()
    before = len((await console_mesh.client.messages.window(agent.proto.default_conversation_id)).messages)
    await page.get_by_role("button", name="Try a compaction").click()
    await expect(page.get_by_label("Summary", exact=True)).to_have_text("They bought food.")
    await expect(page.get_by_text("A compaction would change the window so:")).to_be_visible()
    await expect(page.locator(".compared")).to_contain_text(f"{before} messages")
    assert len((await console_mesh.client.messages.window(agent.proto.default_conversation_id)).messages) == before

    await page.get_by_role("button", name="Compact now").click()
    await expect(page.get_by_text("The window has been compacted:")).to_be_visible()
    await page.get_by_text("The summary in the window").click()
    left, after = page.get_by_role("region", name="Before"), page.get_by_role("region", name="After")
    await expect(left).to_contain_text("Buy apples.")
    await expect(left).not_to_contain_text("Buy figs.")
    await expect(after).to_contain_text("They bought food.")
    await expect(after).to_contain_text("Buy figs.")
    await left.get_by_role("link", name="user").first.click()
    await expect(page.locator(".is-target")).to_contain_text("Buy apples.")
