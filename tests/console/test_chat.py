"""Conversations in the console: formatted answers, messages that are taken back, tools of the client, earlier parts."""

import pytest
from mnemesh.agents.v1.runs_pb2 import ClientTool, RunConfig
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from playwright.async_api import Page, expect

from tests.console.steps import open_agent, send

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.full]
ANSWER = """\
## Plan

The **launch** is *today*: see `launch(at)`, [the page](https://example.com/a_b) and https://example.org/x.
A snake_case_name, 2 * 3 * 4, [a trap](javascript:alert(1)) and ![a picture](https://example.com/p.png).

1. Tea
   - green

| item | price |
|------|------:|
| tea  | 3.20  |

```python
print("<b>ten</b>")
```
"""


async def test_an_answer_is_formatted_without_becoming_html(
    page: Page, console_mesh: Mesh, fake_model: FakeOpenAI
) -> None:
    fake_model.script = [Reply(text=ANSWER, piece_size=7)]
    await open_agent(page, console_mesh, model="openai/fake-model")
    await send(page, "Show **me**.")
    answer = page.get_by_role("article", name="Agent")
    await expect(answer.locator("pre")).to_have_text('print("<b>ten</b>")')
    await expect(answer.get_by_role("heading", name="Plan")).to_be_visible()
    await expect(answer.locator("strong").nth(1)).to_have_text("launch")
    await expect(answer.locator("em")).to_have_text(["today"])
    await expect(answer.locator(":not(pre) > code")).to_have_text(["launch(at)"])
    await expect(answer.locator("ol > li > ul > li")).to_have_text("green")
    await expect(answer.get_by_role("cell")).to_have_text(["tea", "3.20"])
    links = answer.get_by_role("link")
    await expect(links).to_have_text(["the page", "https://example.org/x", "a picture"])
    await expect(links.first).to_have_attribute("href", "https://example.com/a_b")
    await expect(links.first).to_have_attribute("rel", "noopener noreferrer")
    await expect(answer).to_contain_text("A snake_case_name, 2 * 3 * 4, [a trap](javascript:alert(1))")
    # What a user writes stays as it was written, and no picture is loaded.
    await expect(page.get_by_role("article", name="You")).to_contain_text("Show **me**.")
    assert await page.locator("main img, main b").count() == 0


async def test_a_message_is_taken_back_and_sent_again(page: Page, console_mesh: Mesh) -> None:
    """The old conversation stays."""
    agent = await open_agent(page, console_mesh, blocks={"human": ""})
    await agent.ask("My name is Ada.")
    await agent.ask("My name is Bea.")
    await page.reload()
    await expect(page.get_by_role("article", name="You")).to_have_count(2)
    await page.get_by_role("button", name="Undo").click()
    await expect(page.get_by_role("article", name="You")).to_have_count(1)
    await expect(page.get_by_placeholder("Message to")).to_have_value("My name is Bea.")
    await send(page, "My name is Cleo.")
    await expect(page.get_by_role("article", name="Agent").last).to_contain_text("Cleo")
    await page.get_by_label("Conversation", exact=True).select_option(agent.proto.default_conversation_id)
    await expect(page.get_by_role("article", name="You").last).to_contain_text("Bea")


async def test_a_table_of_too_many_columns_is_text(page: Page, console_mesh: Mesh, fake_model: FakeOpenAI) -> None:
    """The page would not answer for many seconds."""
    bars = "|" * 50_000
    fake_model.script = [Reply(text=f"{bars}\n{'|-' * 25_000}", piece_size=10_000)]
    await open_agent(page, console_mesh, model="openai/fake-model")
    await send(page, "Show me.")
    answer = page.get_by_role("article", name="Agent")
    await expect(answer).to_contain_text("||||")
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    await expect(answer.get_by_role("table")).to_have_count(0)


async def test_a_refused_message_is_a_draft_again(page: Page, console_mesh: Mesh) -> None:
    agent = await open_agent(page, console_mesh)
    await expect(page.get_by_text("This conversation has no messages yet.")).to_be_visible()
    await agent.delete()
    await send(page, "Keep this.")
    await expect(page.get_by_role("alert")).to_contain_text("NOT_FOUND")
    await expect(page.get_by_placeholder("Message to")).to_have_value("Keep this.")


async def test_the_first_message_is_taken_back(page: Page, console_mesh: Mesh) -> None:
    agent = await open_agent(page, console_mesh)
    await agent.ask("My name is Ada.")
    await page.reload()
    await page.get_by_role("button", name="Undo").click()
    await expect(page.get_by_text("This conversation has no messages yet.")).to_be_visible()
    await expect(page.get_by_placeholder("Message to")).to_have_value("My name is Ada.")
    await page.get_by_role("link", name="Memory").click()
    await page.get_by_role("link", name="Chat").click()
    await expect(page.get_by_placeholder("Message to")).to_have_value("My name is Ada.")


async def test_a_tool_of_the_client_is_answered(page: Page, console_mesh: Mesh, fake_model: FakeOpenAI) -> None:
    """The run waits; a person writes the result."""
    fake_model.script = [Reply(tool_calls=(("read_gauge", {"room": "hall"}),)), "It is 21 degrees."]
    agent = await open_agent(page, console_mesh, model="openai/fake-model")
    tool = ClientTool(name="read_gauge", description="Reads.", parameters='{"type": "object", "properties": {}}')
    async for _ in agent.send("How warm is it?", config=RunConfig(client_tools=[tool])):
        pass
    await page.reload()
    await expect(page.get_by_text("The agent waits for a tool of yours")).to_be_visible()
    await expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    await page.get_by_label("Result of read_gauge").fill("21 degrees")
    await page.get_by_role("button", name="Return the result").click()
    await expect(page.get_by_role("article", name="Agent")).to_contain_text("It is 21 degrees.")
    await expect(page.locator(".call", has_text="read_gauge")).to_contain_text("21 degrees")
    await expect(page.get_by_text("answered by a client")).to_be_visible()


async def test_a_hit_leads_to_its_turn_in_an_earlier_part(page: Page, console_mesh: Mesh) -> None:
    """A part around the message is shown, and the newest messages can be reached from there."""
    agent = await open_agent(page, console_mesh, "memory")
    await agent.ask("The violet key opens the cellar.")
    for number in range(30):
        await agent.ask(f"Hello number {number}.")
    await page.get_by_role("button", name="Recall").click()
    await page.get_by_role("searchbox", name="Search messages").fill("violet key")
    await page.keyboard.press("Enter")
    await page.get_by_role("link", name="Go to the turn").first.click()
    await expect(page.locator(".is-target")).to_contain_text("violet key")
    await expect(page.locator(".is-target")).to_be_in_viewport()
    await expect(page.locator(".is-target")).to_be_focused()
    await expect(page.get_by_text("Hello number 29.", exact=True)).to_have_count(0)
    await page.get_by_role("link", name="Newest messages").click()
    await expect(page.get_by_text("Hello number 29.", exact=True)).to_be_visible()
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    await page.go_back()
    await page.get_by_role("button", name="Later messages").click()
    await expect(page.get_by_text("Hello number 29.", exact=True)).to_be_visible()
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
