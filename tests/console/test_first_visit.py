"""What a person who uses the console for the first time runs into: focus, mistakes, a mesh that is away, the login."""

from pathlib import Path
from uuid import uuid4

import pytest
from mnemesh_kit.auth import Role, mint_token
from mnemesh_kit.call_context import Principal
from mnemesh_kit.ids import new_id
from mnemesh_kit.services import STORE_NAMES
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from playwright.async_api import Browser, Page, Route, expect

from tests.console.steps import open_agent, send

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def focused(page: Page) -> str:
    """Returns the name of the element that has the focus; empty if none has it."""
    found: str = await page.evaluate(
        """() => {
          const element = document.activeElement;
          return element === document.body ? "" : element.ariaLabel || element.labels?.[0]?.textContent
            || document.getElementById(element.getAttribute("aria-labelledby"))?.textContent || element.textContent;
        }"""
    )
    return found


@pytest.mark.full
async def test_the_focus_stays_where_a_person_works(page: Page, console_mesh: Mesh) -> None:
    """After a block was saved, after a dialog, and after what had the focus was deleted."""
    agent = await open_agent(page, console_mesh, "memory", blocks={"human": "", "persona": ""})
    block = page.get_by_role("article", name="Block human")
    await block.get_by_role("textbox").fill("Likes tea.")
    await block.get_by_role("button", name="Save").press("Enter")
    await expect(block.get_by_text("Revision 2")).to_be_visible()
    await expect(block).to_be_focused()
    await page.get_by_role("button", name="Add a block").press("Enter")
    await page.get_by_label("Label").fill("house")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("article", name="Block house")).to_be_visible()
    await expect(page.get_by_role("button", name="Add a block")).to_be_focused()
    await page.get_by_role("button", name="Remove house").press("Enter")
    await page.get_by_role("dialog").get_by_role("button", name="Delete").press("Enter")
    await expect(page.get_by_role("article", name="Block house")).to_have_count(0)
    assert await focused(page) == "Core memory"
    await page.get_by_role("button", name="Archival").press("Enter")
    await page.get_by_label("Text of a new passage").fill("Green tea.")
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Delete").press("Enter")
    await expect(page.get_by_text("The archives are empty.")).to_be_visible()
    assert await focused(page) == "Archival memory"
    await page.goto("/console/#/agents")
    await page.get_by_role("button", name=f"Delete {agent.name}").press("Enter")
    await page.get_by_role("button", name="Delete agent", exact=True).press("Enter")
    await expect(page.get_by_role("link", name=agent.name)).to_have_count(0)
    assert await focused(page) == "Agents"


@pytest.mark.full
async def test_an_approval_is_near_the_composer(page: Page, console_mesh: Mesh, fake_model: FakeOpenAI) -> None:
    """It is announced, and Enter leads from the composer to it."""
    insert = ("memory_insert", {"label": "human", "new_str": "Likes tea."})
    fake_model.script = [Reply(tool_calls=(insert,)), "I wrote it down."]
    agent = await open_agent(page, console_mesh, model="openai/fake-model", blocks={"human": ""})
    await agent.set_tool_approval("memory_insert")
    await send(page, "I like tea.")
    await expect(page.get_by_role("alert")).to_have_text("The agent waits for you: memory_insert")
    await page.get_by_label(f"Message to {agent.name}").press("Enter")
    await expect(page.get_by_role("region", name="Approval")).to_be_focused()
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("button", name="Approve")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("article", name="Agent")).to_contain_text("I wrote it down.")


@pytest.mark.full
async def test_a_message_waits_while_the_mesh_is_away_and_is_sent_once(page: Page, console_mesh: Mesh) -> None:
    """Another panel does not lose it. One that is discarded is not sent."""
    agent = await open_agent(page, console_mesh, blocks={"human": ""})
    await expect(page.get_by_text("This conversation has no messages yet.")).to_be_visible()
    await console_mesh.stop("gateway")
    said = page.get_by_role("article", name="You")
    await send(page, "Discard this.")
    await expect(said).to_contain_text("not sent yet")
    await page.get_by_role("button", name="Discard").click()
    await expect(said).to_have_count(0)
    await page.get_by_role("link", name="Memory").click()
    await page.get_by_role("link", name="Chat").click()
    await expect(page.get_by_role("alert").first).to_contain_text("UNAVAILABLE")
    await send(page, "My name is Ada.")
    await expect(said).to_contain_text("not sent yet")
    await expect(page.get_by_text("The run continues")).to_have_count(0)
    await page.get_by_role("link", name="Memory").click()
    await page.get_by_role("link", name="Chat").click()
    await expect(said).to_contain_text("not sent yet")
    await console_mesh.start("gateway")
    await expect(page.get_by_role("article", name="Agent")).to_contain_text("Ada")
    await expect(page.get_by_role("alert")).to_have_count(0)
    await expect(said).to_have_text("You" + await said.locator("time").inner_text() + "ForkMy name is Ada.")
    assert len([run async for run in console_mesh.client.runs.list(agent_id=agent.id)]) == 1


@pytest.mark.full
async def test_a_page_that_a_person_comes_back_to_shows_what_was_said_elsewhere(page: Page, console_mesh: Mesh) -> None:
    """The draft stays."""
    agent = await open_agent(page, console_mesh, blocks={"human": ""})
    await send(page, "My name is Ada.")
    await expect(page.get_by_role("article", name="Agent")).to_have_count(1)
    await page.get_by_placeholder("Message to").fill("A draft.")
    await agent.ask("My name is Bea.")
    await page.evaluate("dispatchEvent(new Event('focus'))")
    await expect(page.get_by_role("article", name="You")).to_have_count(2)
    await expect(page.get_by_role("article", name="Agent").last).to_contain_text("Bea")
    await expect(page.get_by_placeholder("Message to")).to_have_value("A draft.")


@pytest.mark.full
async def test_a_wrong_address_says_so(page: Page) -> None:
    for address in ("nowhere", "agents/agent-1/nowhere"):
        await page.goto(f"/console/#/{address}")
        await expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    for section, prefix in (("agents", "agent"), ("tools", "tool"), ("files", "source"), ("groups", "group")):
        for number in (uuid4(), 1):
            await page.goto(f"/console/#/{section}/{prefix}-{number}")
            await page.get_by_role("link", name=f"Show all {section}").click()
            await expect(page.get_by_role("heading", level=1, name=section.title())).to_be_visible()


@pytest.mark.full
async def test_an_expired_token_does_not_lose_a_form(browser: Browser, tmp_path: Path) -> None:
    """The login comes over the page, which then goes on: the form is sent, and a stream is followed."""
    keys = tmp_path / "keys"
    keys.write_text("k" * 32)
    settings = {name: {"auth_key_file": str(keys)} for name in ("gateway", *STORE_NAMES)}
    owner = Principal(new_id("org"), new_id("user"))
    async with Mesh(tmp_path / "data", gateway=True, in_memory=True, settings=settings) as mesh:
        page = await browser.new_page()
        await page.goto(f"http://{mesh.addresses['gateway']}/console/")

        async def log_in() -> None:
            await page.get_by_label("Token").fill(mint_token(b"k" * 32, owner, 600))
            await page.get_by_role("button", name="Log in").click()
            await expect(page.get_by_label("Token")).to_have_count(0)

        async def expire() -> None:
            """Refuses the next call, as if the token had expired."""
            await page.route("**/mnemesh.*/**", _refuse, times=1)

        await log_in()
        await page.get_by_role("button", name="New agent").click()
        await page.get_by_label("Name", exact=True).fill("ada")
        await page.get_by_label("Text of block human").fill("Likes tea.")
        await expire()
        await page.get_by_role("button", name="Create agent").click()
        await expect(page.get_by_role("alert")).to_contain_text("may have expired")
        await expect(page.get_by_label("Text of block human")).to_have_value("Likes tea.")
        await log_in()
        await expect(page.get_by_role("heading", name="ada")).to_be_visible()
        await expect(page.get_by_text("This conversation has no messages yet.")).to_be_visible()
        await expire()
        await page.get_by_label("Message to ada").fill("My name is Ada.")
        await page.keyboard.press("Enter")
        await log_in()
        await expect(page.get_by_role("article", name="Agent")).to_contain_text("Ada")
        await expect(page.get_by_role("article", name="You")).to_have_count(1)
        await page.close()


@pytest.mark.full
async def test_a_reader_is_told_what_is_refused(browser: Browser, tmp_path: Path) -> None:
    """The bar says it before; the place where a change was refused says which role it needs."""
    keys = tmp_path / "keys"
    keys.write_text("k" * 32)
    settings = {name: {"auth_key_file": str(keys)} for name in ("gateway", *STORE_NAMES)}
    caller = Principal(new_id("org"), new_id("user"))
    async with Mesh(tmp_path / "data", gateway=True, in_memory=True, settings=settings) as mesh:
        for role in (Role.READER, Role.WRITER):
            page = await browser.new_page()
            await page.goto(f"http://{mesh.addresses['gateway']}/console/")
            await page.get_by_label("Token").fill(mint_token(b"k" * 32, caller, 600, role=role))
            await page.get_by_role("button", name="Log in").click()
            await expect(page.get_by_text("There is no agent yet.")).to_be_visible()
            await expect(page.get_by_text("read only", exact=True)).to_have_count(int(role is Role.READER))
            if role is Role.READER:
                await page.get_by_role("button", name="New agent").click()
                await page.get_by_label("Name", exact=True).fill("ada")
                await page.get_by_role("button", name="Create agent").click()
                await expect(page.get_by_role("alert")).to_contain_text("requires the role writer")
                await expect(page.get_by_label("Name", exact=True)).to_have_value("ada")
            await page.close()


async def _refuse(route: Route) -> None:
    body = '{"code": "unauthenticated", "message": "The token has expired."}'
    await route.fulfill(status=401, content_type="application/json", body=body)


@pytest.mark.full
async def test_a_hostile_answer_does_not_stop_the_page(page: Page, console_mesh: Mesh, fake_model: FakeOpenAI) -> None:
    """Emphasis without end: the page answers within a moment, and what is too much is shown as it was written."""
    hostile = "(*a*" * 25_000
    fake_model.script = [Reply(text=hostile, piece_size=2_000)]
    await open_agent(page, console_mesh, model="openai/fake-model")
    await send(page, "Show me.")
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    answer = page.get_by_role("article", name="Agent")
    await expect(answer).to_contain_text("(*a*(*a*")
    assert await answer.locator("em").count() < 5_000
