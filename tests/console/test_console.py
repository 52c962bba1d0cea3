"""The console in a browser, on a mesh with the rehearsal model and with a scripted one."""

import asyncio
import base64
import json
import re
from pathlib import Path
from uuid import uuid4

import pytest
from mnemesh_kit.auth import mint_token
from mnemesh_kit.call_context import Principal
from mnemesh_kit.ids import new_id
from mnemesh_kit.services import STORE_NAMES
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply, status
from mnemesh_testkit.mesh.in_process import Mesh
from playwright.async_api import Browser, FilePayload, Page, expect

from tests.console.proxies import proxy
from tests.console.steps import open_agent, send

pytestmark = pytest.mark.asyncio(loop_scope="module")
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
MARKUP = "<img src=x onerror=\"document.title='broken in'\"><script>document.title='broken in'</script><b>bold</b>"


@pytest.mark.full
async def test_an_agent_is_created_with_the_shown_request_and_deleted(page: Page, console_mesh: Mesh) -> None:
    name = f"ada-{uuid4().hex[:8]}"
    await expect(page).to_have_url(f"http://{console_mesh.addresses['gateway']}/console/")
    await page.get_by_role("button", name="New agent").click()
    await page.get_by_label("Name", exact=True).fill(name)
    await page.get_by_label("Text of block human").fill("Likes tea.")
    await page.get_by_text("The request that will be sent").click()
    shown = page.get_by_label("Request of CreateAgent")
    await expect(shown).to_contain_text(name)
    await expect(shown).to_contain_text("Likes tea.")
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.get_by_role("button", name="Copy").click()
    await expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert json.loads(await page.evaluate("navigator.clipboard.readText()"))["agent"]["name"] == name
    await page.get_by_role("button", name="Create agent").click()
    await expect(page.get_by_role("heading", name=name)).to_be_visible()
    agent = await console_mesh.client.agents.find(name)
    assert [block.value for block in (await agent.memory()).blocks] == ["Likes tea.", ""]

    await page.get_by_role("link", name="Agents").click()
    await expect(page.get_by_role("link", name=name)).to_be_visible()
    await page.get_by_role("button", name=f"Delete {name}").click()
    await expect(page.get_by_role("dialog")).to_contain_text("its blocks human, persona")
    await page.get_by_role("button", name="Delete agent").click()
    await expect(page.get_by_role("link", name=name)).to_have_count(0)
    assert name not in [each.name async for each in console_mesh.client.agents.list()]


async def test_a_turn_shows_its_tool_calls_and_is_the_same_after_a_reload(page: Page, console_mesh: Mesh) -> None:
    await open_agent(page, console_mesh, blocks={"human": "", "persona": ""})
    await send(page, "My name is Ada. Remember that the launch is on Friday.")
    for _ in range(2):
        await expect(page.locator(".call")).to_have_count(2)
        await expect(page.get_by_role("article", name="You")).to_have_count(1)
        await expect(page.get_by_role("article", name="Agent")).to_contain_text("I wrote your name, Ada")
        await page.locator(".call", has_text="memory_insert").first.locator("summary").click()
        await expect(page.locator(".call[open]")).to_contain_text("Name: Ada")
        await expect(page.locator(".call[open]")).to_contain_text("Result")
        await page.reload()


@pytest.mark.full
async def test_a_reload_in_mid_turn_continues_where_the_turn_is(
    page: Page, console_mesh: Mesh, fake_model: FakeOpenAI
) -> None:
    """The model stops after some tokens. After a reload they are there at once, before others arrive."""
    goes_on = asyncio.Event()
    answered = "First half. Second half."
    fake_model.script = [Reply(text=answered, reasoning="I count.", piece_size=12, gates=(_set(), goes_on))]
    await open_agent(page, console_mesh, model="openai/fake-model")
    await send(page, "Tell me.")
    await expect(page.get_by_role("article", name="Agent")).to_contain_text("First half.")
    await page.reload()
    await expect(page.get_by_role("article", name="You")).to_contain_text("Tell me.")
    await expect(page.get_by_role("button", name="Cancel the run")).to_be_enabled()
    await expect(page.get_by_role("article", name="Agent")).to_contain_text("First half.")
    goes_on.set()
    await expect(page.get_by_role("article", name="Agent")).to_contain_text(answered)
    await expect(page.get_by_role("article", name="You")).to_have_count(1)
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    await page.get_by_text("Reasoning").click()
    await expect(page.get_by_text("I count.")).to_be_visible()


@pytest.mark.full
async def test_a_reload_after_the_first_step_shows_each_message_once(
    page: Page, console_mesh: Mesh, fake_model: FakeOpenAI
) -> None:
    """The first step is stored, and is in the events of the run too."""
    goes_on = asyncio.Event()
    insert = ("memory_insert", {"label": "human", "new_str": "Likes tea."})
    fake_model.script = [
        Reply(text="I write it down.", reasoning="A fact.", tool_calls=(insert,)),
        Reply(text="First half. Second half.", piece_size=12, gates=(_set(), goes_on)),
    ]
    await open_agent(page, console_mesh, model="openai/fake-model", blocks={"human": ""})
    await send(page, "I like tea.")
    await expect(page.get_by_role("article", name="Agent").last).to_contain_text("First half.")
    await page.reload()
    await expect(page.get_by_role("button", name="Cancel the run")).to_be_enabled()
    await expect(page.get_by_role("article", name="Agent").first).to_contain_text("I write it down.")
    await expect(page.get_by_role("article", name="Agent").last).to_contain_text("First half.")
    goes_on.set()
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    await expect(page.get_by_role("article")).to_have_text(
        [re.compile("I like tea"), re.compile("I write it down"), re.compile("First half. Second half.")]
    )
    await expect(page.get_by_text("Reasoning")).to_have_count(1)


@pytest.mark.full
async def test_a_run_is_cancelled(page: Page, console_mesh: Mesh, fake_model: FakeOpenAI) -> None:
    fake_model.script = [Reply(text="Never said.", gates=(asyncio.Event(),))]
    await open_agent(page, console_mesh, model="openai/fake-model")
    await send(page, "Wait.")
    await page.get_by_role("button", name="Cancel the run").click()
    await expect(page.get_by_text("The run was cancelled.").first).to_be_visible()
    await expect(page.get_by_role("button", name="Send")).to_be_visible()


@pytest.mark.full
async def test_a_failed_run_shows_its_reason_and_is_retried(
    page: Page, console_mesh: Mesh, fake_model: FakeOpenAI
) -> None:
    fake_model.script = [status(401, "Incorrect API key provided."), "Now it works."]
    await open_agent(page, console_mesh, model="openai/fake-model")
    await send(page, "Hello.")
    await expect(page.get_by_role("alert")).to_contain_text("PROVIDER_AUTH")
    await page.reload()
    await expect(page.get_by_role("alert")).to_contain_text("Check the key")
    await page.get_by_role("button", name="Try again").click()
    await expect(page.get_by_role("article", name="Agent")).to_contain_text("Now it works.")
    await expect(page.get_by_role("article", name="You")).to_have_count(1)
    await expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.full
async def test_an_approval_is_answered(page: Page, console_mesh: Mesh, fake_model: FakeOpenAI) -> None:
    """After a reload too: the request waits."""
    insert = ("memory_insert", {"label": "human", "new_str": "Likes tea."})
    fake_model.script = [Reply(tool_calls=(insert,)), "I wrote it down."]
    agent = await open_agent(page, console_mesh, model="openai/fake-model", blocks={"human": ""})
    await agent.set_tool_approval("memory_insert")
    await send(page, "I like tea.")
    await expect(page.get_by_role("button", name="Approve")).to_be_visible()
    await page.reload()
    await expect(page.get_by_role("button", name="Approve")).to_be_enabled()  # a key press does not wait for that
    await page.get_by_role("button", name="Approve").press("Enter")
    await expect(page.get_by_role("log", name="Messages")).to_be_focused()
    await expect(page.get_by_role("article", name="Agent")).to_contain_text("I wrote it down.")
    await expect(page.get_by_text("approved")).to_be_visible()
    assert "Likes tea." in (await agent.memory()).blocks[0].value


@pytest.mark.full
async def test_a_reload_after_an_approval_continues_where_the_turn_is(
    page: Page, console_mesh: Mesh, fake_model: FakeOpenAI
) -> None:
    """The turn that the answer began is followed like that of a message: the tokens before the reload are there."""
    goes_on = asyncio.Event()
    insert = ("memory_insert", {"label": "human", "new_str": "Likes tea."})
    fake_model.script = [
        Reply(tool_calls=(insert,)),
        Reply(text="First half. Second half.", piece_size=12, gates=(_set(), goes_on)),
    ]
    agent = await open_agent(page, console_mesh, model="openai/fake-model", blocks={"human": ""})
    await agent.set_tool_approval("memory_insert")
    await send(page, "I like tea.")
    await page.get_by_role("button", name="Approve").click()
    await expect(page.get_by_role("article", name="Agent")).to_contain_text("First half.")
    await page.reload()
    await expect(page.get_by_role("article", name="Agent")).to_contain_text("First half.")
    goes_on.set()
    await expect(page.get_by_role("article", name="Agent")).to_contain_text("First half. Second half.")
    await expect(page.get_by_role("button", name="Send")).to_be_visible()


async def test_markup_is_shown_as_text(page: Page, console_mesh: Mesh, fake_model: FakeOpenAI) -> None:
    """In the words of the user, of the model and of a tool, and in memory."""
    append = ("memory_insert", {"label": "human", "new_str": MARKUP})
    fake_model.script = [Reply(tool_calls=(append,), reasoning=MARKUP), MARKUP]
    await open_agent(page, console_mesh, model="openai/fake-model", blocks={"human": MARKUP})
    await send(page, MARKUP)
    for speaker in ("You", "Agent"):
        await expect(page.get_by_role("article", name=speaker)).to_contain_text(MARKUP)
    await page.locator(".call summary").click()
    await expect(page.locator(".call")).to_contain_text("<b>bold</b>")
    assert await page.locator("b, main script, main img").count() == 0
    assert await page.title() == "mnemesh console"


def _set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@pytest.mark.full
async def test_a_lost_connection_does_not_lose_the_turn(page: Page, console_mesh: Mesh, fake_model: FakeOpenAI) -> None:
    goes_on = asyncio.Event()
    answered = "First half. Second half."
    fake_model.script = [Reply(text=answered, piece_size=12, gates=(_set(), goes_on))]
    await open_agent(page, console_mesh, model="openai/fake-model")
    await send(page, "Tell me.")
    await expect(page.get_by_role("article", name="Agent")).to_contain_text("First half.")
    await console_mesh.stop("gateway")
    await expect(page.get_by_text("The connection is lost.")).to_be_visible()
    goes_on.set()
    await console_mesh.start("gateway")
    await expect(page.get_by_role("article", name="Agent")).to_contain_text(answered)
    await expect(page.get_by_role("article")).to_have_count(2)


@pytest.mark.full
async def test_a_fork_shares_the_messages_up_to_one(page: Page, console_mesh: Mesh) -> None:
    agent = await open_agent(page, console_mesh)
    await agent.ask("My name is Ada.")
    await agent.ask("My name is Bea.")
    await page.reload()
    first = page.get_by_role("article", name="Agent").first
    await first.hover()
    await first.get_by_role("button", name="Fork").click()
    await expect(page.get_by_role("article", name="You")).to_have_count(1)
    await expect(page.get_by_role("article", name="You")).to_contain_text("Ada")


@pytest.mark.full
async def test_an_image_is_sent_and_shown(page: Page, console_mesh: Mesh, fake_model: FakeOpenAI) -> None:
    fake_model.script = ["A red dot."]
    await open_agent(page, console_mesh, model="openai/fake-model")
    image: FilePayload = {"name": "dot.png", "mimeType": "image/png", "buffer": base64.b64decode(PNG)}
    await page.get_by_label("Add images").set_input_files([image])
    await expect(page.get_by_role("list", name="Images of the message")).to_contain_text("dot.png")
    await send(page, "What is this?")
    await expect(page.get_by_role("article", name="Agent")).to_contain_text("A red dot.")
    shown = page.get_by_role("article", name="You").get_by_role("img")
    await expect(shown).to_have_js_property("naturalWidth", 1)
    assert PNG in fake_model.requests[-1].raw.decode()


async def test_the_page_asks_for_a_token(browser: Browser, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k" * 32)
    settings = {name: {"auth_key_file": str(keys)} for name in ("gateway", *STORE_NAMES)}
    good = mint_token(b"k" * 32, Principal(new_id("org"), new_id("user")), 600)
    async with Mesh(tmp_path / "data", gateway=True, in_memory=True, settings=settings) as mesh:
        page = await browser.new_page()
        await page.goto(f"http://{mesh.addresses['gateway']}/console/")
        for token in ("wrong", "wröng", good):
            await page.get_by_label("Token").fill(token)
            await page.get_by_role("button", name="Log in").click()
            if token != good:
                await expect(page.get_by_role("alert")).to_contain_text("does not accept this token")
        await expect(page.get_by_text("There is no agent yet.")).to_be_visible()
        assert await page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])") == '[{},{},""]'
        await page.reload()
        await expect(page.get_by_label("Token")).to_have_value("")
        await page.close()


@pytest.mark.full
async def test_the_page_works_below_a_prefix(page: Page, console_mesh: Mesh) -> None:
    """All panels, a streamed turn and an upload pass through a reverse proxy that removes the prefix."""
    async with proxy(f"http://{console_mesh.addresses['gateway']}", "/team") as address:
        await page.goto(f"{address}/")
        await expect(page).to_have_url(f"{address}/console/")
        await page.get_by_role("button", name="New agent").click()
        await page.get_by_label("Name", exact=True).fill(f"prefixed-{uuid4().hex[:8]}")
        await page.get_by_role("button", name="Create agent").click()
        await send(page, "My name is Ada.")
        await expect(page.get_by_role("article", name="Agent")).to_contain_text("I wrote your name, Ada")
        for panel in ("Context", "Memory", "Runs", "Settings"):
            await page.get_by_role("link", name=panel).click()
            await expect(page.locator("main h2").first).to_be_visible()
            await expect(page.locator("main .busy")).to_have_count(0)
        for section in ("Tools", "Groups", "Files"):
            await page.get_by_role("link", name=section).click()
            await expect(page.get_by_role("heading", level=1, name=section)).to_be_visible()
        await page.get_by_role("button", name="New folder").click()
        await page.get_by_label("Name").fill(f"prefixed-{uuid4().hex[:8]}")
        await page.get_by_role("button", name="Create folder").click()
        note: FilePayload = {"name": "note.md", "mimeType": "text/markdown", "buffer": b"# Note"}
        await page.get_by_label("Upload files").set_input_files(note)
        await expect(page.locator("details", has_text="note.md")).to_contain_text("ready")
        await page.get_by_role("link", name="Mesh", exact=True).click()
        await expect(page.get_by_role("list", name="Services").get_by_text("answers", exact=True)).to_have_count(7)
        await expect(page.get_by_role("alert")).to_have_count(0)
