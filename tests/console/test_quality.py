"""The quality of the whole page: accessibility, the keyboard, markup in every field, many messages, and its size."""

import asyncio
import gzip
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

import pytest
import pytest_asyncio
from mnemesh.recall.v1 import episodes_pb2, episodes_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent
from mnemesh_gateway.http.console import FILES
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.timeouts import scaled
from playwright.async_api import Browser, Page, expect

from tests.console.steps import open_agent, send

pytestmark = pytest.mark.asyncio(loop_scope="module")
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
MARKUP = "<img src=x onerror=\"document.title='broken in'\"><script>document.title='broken in'</script><b>bold</b>"
SOURCE = '''def weigh(amount: int) -> str:
    """Weigh something. {markup}

    Args:
        amount: how much. {markup}
    """
    print({printed!r})
    return {printed!r}
'''
MOST_SCRIPT_BYTES = 250_000
FIRST_PAINT_MS = scaled(1_000)
MANY = 10_000


@dataclass(frozen=True)
class Things:
    """One of each kind that the mesh keeps. Their texts have markup where a text is free."""

    agent: Agent
    addresses: tuple[str, ...]
    """The addresses of all views."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def things(console_mesh: Mesh, fake_model: FakeOpenAI, tmp_path_factory: pytest.TempPathFactory) -> Things:
    """An agent with a turn, a tool, a folder with an open file, a group with a turn, and a server of MCP."""
    client = console_mesh.client
    agent = await client.agents.create(
        f"ada {MARKUP}", model="openai/fake-model", blocks={"human": MARKUP, "persona": "I am Ada."}
    )
    insert = ("memory_insert", {"label": "human", "new_str": MARKUP})
    fake_model.script = [Reply(tool_calls=(insert,), reasoning=MARKUP), Reply(text=MARKUP)]
    await agent.ask(MARKUP)
    await client.passages.insert(MARKUP, agent_id=agent.id, tags=[MARKUP])
    fact = await client.facts.create(f"fact {MARKUP}", agent_id=agent.id, tags=["<b>bold</b>"])
    scope = episodes_pb2.MemoryScope(agent_id=agent.id)
    corrected = episodes_pb2.SupersedeOperation(
        fact_id=fact.fact.id, fact=episodes_pb2.Fact(text=MARKUP), reason=MARKUP
    )
    await client.facts.stub.SupersedeFact(episodes_service_pb2.SupersedeFactRequest(operation=corrected))
    await client.episodes.commit(scope, f"episode {MARKUP}", tags=[MARKUP])
    tool = await client.tools.create(SOURCE.format(markup="<b>bold</b>", printed=MARKUP))
    folder = await client.folders.create("folder <b>bold<b>", description=MARKUP)
    path = tmp_path_factory.mktemp("files") / "<b>bold<b>.md"
    path.write_text(f"# Title\n\n{MARKUP}\n")
    stored = await client.files.upload(folder.id, path)
    await client.files.wait(stored.file.id)
    await agent.files.attach(folder.id, open_files=True)
    fake_model.script = [Reply(text=MARKUP)]
    group = await client.groups.create([agent.id], description=f"group {MARKUP}")
    await group.ask(MARKUP)
    await client.mcp_servers.create("<b>server</b>", url="http://127.0.0.1:9/mcp")
    panels = ("chat", "context", "memory", "runs", "settings")
    return Things(
        agent,
        (
            "agents",
            *(f"agents/{agent.id}/{panel}" for panel in panels),
            "tools",
            "tools/new",
            f"tools/{tool.id}",
            "files",
            f"files/{folder.id}",
            "groups",
            f"groups/{group.id}",
            "mesh",
        ),
    )


async def visit(page: Page, address: str) -> None:
    """Opens a view with everything that it folds, and waits until it has loaded."""
    await page.goto(f"/console/#/{address}")
    await expect(page.locator("main h1").first).to_be_visible()
    await expect(page.locator("main .busy")).to_have_count(0)
    for _ in range(2):  # what is folded may fold something itself
        await page.evaluate("document.querySelectorAll('main details').forEach((each) => { each.open = true; })")
        await page.evaluate("new Promise(requestAnimationFrame)")
        await expect(page.locator("main .busy")).to_have_count(0)


async def violations(page: Page) -> list[str]:
    """Returns what axe finds in the page that is serious or critical. Its script is no part of the page."""
    found: dict[str, Any] = await page.evaluate(
        f"(() => {{ {AXE} }})(), axe.run(document, {{ resultTypes: ['violations'] }})"
    )
    return [
        f"{page.url}: {each['id']}: {each['help']}: {each['nodes'][0]['html'][:200]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]


@pytest.mark.full
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 1280), ("light", 360)])
async def test_axe_finds_nothing_serious(
    page: Page, things: Things, theme: Literal["light", "dark"], width: int
) -> None:
    await page.emulate_media(color_scheme=theme)
    await page.set_viewport_size({"width": width, "height": 800})
    found = []
    for address in things.addresses:
        await visit(page, address)
        found += await violations(page)
        wide = await page.evaluate(
            """(width) => [document.body, ...document.querySelectorAll("main, .panel, .timeline")]
              .filter((each) => each.scrollWidth > Math.max(each.clientWidth, width))
              .flatMap(() => [...document.querySelectorAll("main *")])
              .filter((each) => each.getBoundingClientRect().right > width && !each.closest(".code, .tabs"))
              .map((each) => each.outerHTML.slice(0, 120))""",
            width,
        )
        assert wide == [], address
    for address, button in (
        ("agents", "New agent"),
        ("tools", "Add a server"),
        ("files", "New folder"),
        ("groups", "New group"),
    ):
        await visit(page, address)
        await page.get_by_role("button", name=button).click()
        await expect(page.get_by_role("dialog")).to_be_visible()
        found += await violations(page)
    assert found == []


@pytest.mark.full
async def test_markup_in_every_field_is_text(page: Page, things: Things) -> None:
    """In names, descriptions, messages, reasoning, tool calls, blocks, passages, sources, outputs, files and groups."""
    for address in things.addresses:
        await visit(page, address)
        if "/tool-" in address:
            await page.get_by_label("Arguments").fill('{"amount": 1}')
            await page.get_by_role("button", name="Run", exact=True).click()
            await expect(page.get_by_label("stdout")).to_contain_text(MARKUP)
        for tier in ("Archival", "Recall", "Facts") if address.endswith("/memory") else ():
            await page.get_by_role("button", name=tier).click()
            await expect(page.locator("main li", has_text="<b>bold</b>").first).to_be_visible()
            assert await page.locator("b, main script, main img, main iframe").count() == 0, tier
        await expect(page.locator("main .busy")).to_have_count(0)
        assert await page.locator("b, main script, main img, main iframe").count() == 0, address
        assert await page.title() == "mnemesh console", address
        if address not in ("tools/new", "mesh") and "settings" not in address:
            content = await page.evaluate(
                "document.body.innerText + [...document.querySelectorAll('textarea')].map((each) => each.value).join()"
            )
            assert "<b>" in content, address


@pytest.mark.full
async def test_a_name_that_turns_the_direction_of_text_is_shown_by_its_codes(page: Page, console_mesh: Mesh) -> None:
    """In lists, heads, choices, labels and dialogs."""
    client, turned = console_mesh.client, "invoice\u202efdp.exe"
    agent = await client.agents.create(turned)
    folder = await client.folders.create("turned", description=turned)
    group = await client.groups.create([agent.id], description=turned)
    for address, button in (
        (f"agents/{agent.id}/chat", None),
        (f"agents/{agent.id}/settings", None),
        ("files", None),
        (f"files/{folder.id}", None),
        ("groups", "New group"),
        (f"groups/{group.id}", "Edit"),
        ("agents", "Delete invoice"),
    ):
        await visit(page, address)
        if button:
            await page.get_by_role("button", name=button).click()
            await expect(page.get_by_role("dialog")).to_be_visible()
        await expect(page.get_by_text("invoice⟨U+202E⟩fdp.exe").first).to_be_attached()
        assert "\u202e" not in await page.content(), address


async def tab_to(page: Page, name: str) -> None:
    """Presses Tab until a control has the focus, which must be visible then."""
    for _ in range(80):
        await page.keyboard.press("Tab")
        seen = await page.evaluate(
            """() => {
              const focused = document.activeElement;
              // Before the first control, after the last, or in a panel that was just opened.
              if (focused === document.body || focused.tabIndex < 0) return ["", true];
              const label = focused.ariaLabel || focused.labels?.[0]?.textContent || focused.textContent || "";
              const style = getComputedStyle(focused);
              const around = focused.closest(".row, .composer, .attach") ?? focused;
              const isVisible = style.outlineStyle !== "none" || getComputedStyle(around).outlineStyle !== "none"
                || around.matches(".composer") || focused.closest("svg") !== null;
              return [label.trim(), isVisible];
            }"""
        )
        assert seen[1], f"the focus on {seen[0]!r} is not visible"
        if seen[0] == name:
            return
    raise AssertionError(f"Tab never reaches {name!r}")


@pytest.mark.full
async def test_everything_is_reached_by_the_keyboard_alone(page: Page, console_mesh: Mesh) -> None:
    """Creates an agent, talks with it, edits a block, and walks through the panels of the mesh."""
    await tab_to(page, "New agent")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.get_by_label("Name", exact=True).focus()
    await page.keyboard.type("walker")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="walker")).to_be_visible()
    await tab_to(page, "Message to walker")
    await page.keyboard.type("My name is Ada.")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("article", name="Agent")).to_contain_text("Ada")
    await page.keyboard.press("Control+Home")
    await tab_to(page, "Memory")
    await page.keyboard.press("Enter")
    await tab_to(page, "Text of block persona")
    await page.keyboard.type("I walk. ")
    await tab_to(page, "Save")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Revision 2").first).to_be_visible()
    for section in ("Tools", "Files", "Groups", "Mesh", "Agents"):
        await tab_to(page, section)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1, name=section)).to_be_visible()
    await tab_to(page, "Groups")
    await page.keyboard.press("Enter")
    await tab_to(page, "New group")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    agent = await console_mesh.client.agents.find("walker")
    assert "I walk." in (await agent.memory()).blocks[1].value


@pytest.mark.full
async def test_a_long_name_leaves_room_for_the_panels(page: Page, console_mesh: Mesh) -> None:
    """On a telephone, too: two lines of it are shown."""
    await page.set_viewport_size({"width": 360, "height": 800})
    agent = await console_mesh.client.agents.create("W" * 300)
    for panel in ("chat", "memory"):
        await page.goto(f"/console/#/agents/{agent.id}/{panel}")
        head = page.locator(".agent-head")
        await expect(head.get_by_role("heading")).to_have_attribute("title", "W" * 300)
        assert await head.evaluate("(each) => each.getBoundingClientRect().height") < 300
    await page.get_by_role("button", name="Archival").click()
    await expect(page.get_by_text("The archives are empty.")).to_be_visible()
    await page.goto("/console/#/agents")
    await page.get_by_role("button", name="Delete WWW").click()
    assert await page.get_by_role("dialog").evaluate("(each) => each.scrollWidth <= each.clientWidth")


@pytest.mark.full
async def test_a_long_conversation_scrolls_to_its_beginning_and_back(page: Page, console_mesh: Mesh) -> None:
    """The document has a part of ten thousand messages, so that a frame takes the same time anywhere."""
    agent = await console_mesh.client.agents.create("talker")
    for start in range(0, MANY, 1000):
        texts = [f"Message {start + index}." for index in range(1000)]
        user = message_pb2.ROLE_USER
        await console_mesh.client.messages.append(
            agent.id,
            [
                message_pb2.Message(role=user, content=[message_pb2.ContentPart(text=message_pb2.TextPart(text=text))])
                for text in texts
            ],
            conversation_id=agent.proto.default_conversation_id,
        )
    await page.goto(f"/console/#/agents/{agent.id}/chat")
    await expect(page.get_by_text(f"Message {MANY - 1}.", exact=True)).to_be_in_viewport()
    frames: list[float] = await page.evaluate(
        """async () => {
          const box = document.querySelector(".timeline");
          const frames = [];
          const began = performance.now();
          while (![...document.querySelectorAll(".text")].some((each) => each.textContent === "Message 8500.")) {
            const start = performance.now();
            box.scrollTop -= 400;
            await new Promise(requestAnimationFrame);
            frames.push(performance.now() - start);
            if (start - began > 100_000) break;
          }
          return frames;
        }"""
    )
    assert await page.get_by_text("Message 8500.", exact=True).count() == 1
    assert await page.get_by_role("article").count() <= 250
    assert sorted(frames)[len(frames) // 2] < scaled(100)
    await send(page, "My name is Ada.")
    await expect(page.get_by_text("My name is Ada.", exact=True)).to_be_in_viewport()


@pytest.mark.full
async def test_fifty_blocks_are_shown_and_edited(page: Page, console_mesh: Mesh) -> None:
    agent = await open_agent(page, console_mesh, "memory", blocks={f"block_{n}": f"Text {n}." for n in range(50)})
    await expect(page.get_by_role("article")).to_have_count(50)
    last = page.get_by_role("article", name="Block block_49", exact=True)
    await last.get_by_role("textbox").fill("Changed.")
    await last.get_by_role("button", name="Save").click()
    await expect(last.get_by_text("Revision 2")).to_be_visible()
    assert {block.label: block.value for block in (await agent.memory()).blocks}["block_49"] == "Changed."


@pytest.mark.full
async def test_a_slow_model_leaves_the_page_usable(page: Page, console_mesh: Mesh, fake_model: FakeOpenAI) -> None:
    """The page says that the agent works. Other panels work meanwhile, and the answer is there afterwards."""
    goes_on = asyncio.Event()
    fake_model.script = [Reply(text="At last.", gates=(goes_on,))]
    agent = await open_agent(page, console_mesh, model="openai/fake-model")
    await send(page, "Take your time.")
    await expect(page.get_by_text("The agent is working")).to_be_visible()
    await page.get_by_role("link", name="Runs").click()
    await expect(page.locator("summary", has_text="Take your time.")).to_contain_text("running")
    await page.get_by_role("link", name="Groups").click()
    await expect(page.get_by_role("heading", level=1, name="Groups")).to_be_visible()
    await page.goto(f"/console/#/agents/{agent.id}/chat")
    await expect(page.get_by_role("button", name="Cancel the run")).to_be_enabled()
    goes_on.set()
    await expect(page.get_by_role("article", name="Agent")).to_contain_text("At last.")


@pytest.mark.full
async def test_the_first_paint_is_quick_and_motion_can_be_reduced(browser: Browser, console_mesh: Mesh) -> None:
    """The best of several loads, because other tests use the processors at the same time."""
    paints = []
    for _ in range(5):
        page = await browser.new_page(reduced_motion="reduce")
        await page.goto(f"http://{console_mesh.addresses['gateway']}/console/")
        await expect(page.get_by_role("heading", name="Agents")).to_be_visible()
        paints.append(await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        await page.close()
    assert min(paints) < FIRST_PAINT_MS


async def test_the_scripts_are_small_and_the_page_refuses_inline_ones(browser: Browser, console_mesh: Mesh) -> None:
    scripts = sum(len(gzip.compress(path.read_bytes())) for path in FILES.rglob("*.js"))
    assert scripts < MOST_SCRIPT_BYTES
    page = await browser.new_page()
    await page.goto(f"http://{console_mesh.addresses['gateway']}/console/")
    refused = await page.evaluate(
        """() => new Promise((resolve) => {
          document.addEventListener("securitypolicyviolation", (event) => resolve(event.effectiveDirective));
          const script = document.createElement("script");
          script.textContent = "document.title = 'broken in'";
          document.body.append(script);
        })"""
    )
    assert refused == "script-src-elem"
    assert await page.title() == "mnemesh console"
    await page.close()
