"""The panels of the whole mesh in a browser: tools, files, groups, and the services."""

import asyncio
import random
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlencode
from uuid import uuid4

import pytest
from mnemesh.agents.v1 import runs_pb2
from mnemesh_kit.auth import mint_token
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, Principal
from mnemesh_kit.ids import new_id
from mnemesh_kit.services import STORE_NAMES
from mnemesh_testkit.fakes.mcp_server import protected
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from playwright.async_api import Browser, Page, expect

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.full]
DOUBLE = '''import sys


def {name}(amount: int, unit: str = "kg") -> str:
    """Double an amount.

    Args:
        amount: what is doubled.
        unit: its unit.
    """
    print("doubling", amount)
    print("no " + unit, file=sys.stderr)
    return f"{{2 * amount}} {{unit}}"
'''


def new_name(kind: str) -> str:
    """Returns a name that no other test uses."""
    return f"{kind}_{uuid4().hex[:8]}"


async def test_a_tool_is_written_tried_and_saved(page: Page, console_mesh: Mesh) -> None:
    name = new_name("double")
    await page.get_by_role("link", name="Tools").click()
    await expect(page.get_by_text("There is no tool yet.")).to_be_visible()
    await page.get_by_role("link", name="New tool").click()
    source = page.get_by_label("Source", exact=True)
    await expect(page.get_by_role("region", name="What the model sees")).to_contain_text("roll_dice")
    await source.fill("def broken(:")
    await expect(page.get_by_role("alert")).to_contain_text("TOOL_SOURCE_INVALID")
    await source.fill(DOUBLE.format(name=name))
    seen = page.get_by_role("region", name="What the model sees")
    await expect(seen).to_contain_text(f"{name} Double an amount.")
    await expect(seen).to_contain_text("unit string, optional")

    await page.get_by_label("Arguments").fill('{"amount": 4}')
    await page.get_by_role("button", name="Run", exact=True).click()
    outcome = page.get_by_role("status", name="Outcome")
    await expect(outcome).to_contain_text("success")
    await expect(outcome.get_by_label("Result")).to_have_text("8 kg")
    await expect(outcome.get_by_label("stdout")).to_have_text("doubling 4")
    await expect(outcome.get_by_label("stderr")).to_contain_text("no kg")
    assert name not in [tool.name async for tool in console_mesh.client.tools.list()]

    endless = DOUBLE.format(name=name).replace('print("doubling", amount)', "while amount: pass")
    await source.fill(endless.replace("Double an amount.", "Never ends."))
    await expect(seen).to_contain_text("Never ends.")
    await page.get_by_role("button", name="Run", exact=True).click()
    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_role("button", name="Run", exact=True)).to_be_enabled()
    await expect(page.get_by_role("alert")).to_have_count(0)
    await source.fill(DOUBLE.format(name=name))
    await expect(seen).to_contain_text(f"{name} Double an amount.")

    await page.get_by_label("Ask a person before each call").check()
    await page.get_by_role("button", name="Create tool").click()
    await expect(page.get_by_role("heading", name=name)).to_be_visible()
    stored = await console_mesh.client.tools.get(name)
    assert (stored.source_code, stored.default_requires_approval) == (DOUBLE.format(name=name), True)
    await source.fill(DOUBLE.format(name=name).replace("Double an", "Double the"))
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_text("revision 2")).to_be_visible()
    agent = await console_mesh.client.agents.create(new_name("weigher"))
    await page.reload()
    await page.get_by_label("Agent that gets the tool").select_option(agent.name)
    await page.get_by_role("button", name="Give it").click()
    await expect(page.get_by_role("list", name="Agents that hold the tool")).to_contain_text(agent.name)
    held = (await console_mesh.client.agents.find(agent.name)).proto.tools
    assert stored.id in [tool.tool_id for tool in held]
    await page.get_by_role("button", name=f"Take it from {agent.name}").click()
    await expect(page.get_by_text("No agent holds this tool.")).to_be_visible()
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Delete tool").click()
    await expect(page.get_by_text("There is no tool yet.")).to_be_visible()


async def test_enter_keeps_the_indentation_of_source(page: Page) -> None:
    await page.goto("/console/#/tools/new")
    source = page.get_by_label("Source", exact=True)
    await source.fill("def add(a: int):")
    await source.press("End")
    for key in ("Enter", "x", "Enter", "y"):
        await page.keyboard.press(key)
    await expect(source).to_have_value("def add(a: int):\n    x\n    y")


async def test_an_mcp_server_that_does_not_answer_says_so(page: Page) -> None:
    await page.goto("/console/#/tools")
    await page.get_by_role("button", name="Add a server").click()
    await page.get_by_label("Name").fill("nowhere")
    await page.get_by_label("URL").fill("http://127.0.0.1:9/mcp")
    await page.get_by_role("button", name="Test it").click()
    await expect(page.get_by_role("dialog")).to_contain_text("unreachable")
    await page.get_by_role("button", name="Add server").click()
    await page.get_by_text("nowhere").click()
    await page.get_by_role("button", name="Read its tools again").click()
    await expect(page.get_by_role("alert")).to_contain_text("MCP_SERVER_UNREACHABLE")
    await expect(page.locator("summary", has_text="nowhere")).to_contain_text("unreachable")
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Delete server").click()
    await expect(page.get_by_text("There is no MCP server yet.")).to_be_visible()


async def test_files_are_uploaded_processed_and_opened_by_an_agent(page: Page, console_mesh: Mesh) -> None:
    """The second file has several pieces, so that its order and its bytes are those of the upload."""
    agent = await console_mesh.client.agents.create(new_name("reader"))
    folder = new_name("reports")
    await page.get_by_role("link", name="Files").click()
    await expect(page.get_by_text("There is no folder yet.")).to_be_visible()
    await page.get_by_role("button", name="New folder").click()
    await page.get_by_label("Name").fill(folder)
    await page.get_by_role("button", name="Create folder").click()
    await expect(page.get_by_text("The folder is empty.")).to_be_visible()
    large = random.Random(1).randbytes(2_500_000)
    await page.get_by_label("Upload files").set_input_files(
        [
            {"name": "launch.md", "mimeType": "text/markdown", "buffer": b"# Launch\n\nIt is on Friday.\n"},
            {"name": "large.bin", "mimeType": "application/octet-stream", "buffer": large},
        ]
    )
    note = page.locator("details", has_text="launch.md")
    await expect(note).to_contain_text("ready")
    await note.locator("summary").click()
    await expect(page.get_by_label("Text of launch.md")).to_contain_text("It is on Friday.")
    await expect(page.locator("details", has_text="large.bin").locator(".tag")).to_have_text("error")
    await expect(page.get_by_role("progressbar")).to_have_count(0)
    found = await console_mesh.client.folders.find(folder)
    files = {file.name: file async for file in console_mesh.client.files.list(folder_id=found.id)}
    assert await console_mesh.client.files.read(files["large.bin"].id) == large

    await page.get_by_label("Agent that gets the folder").select_option(agent.name)
    await page.get_by_role("button", name="Attach").click()
    await expect(page.get_by_role("list", name="Agents that hold the folder")).to_contain_text("no file open")
    await console_mesh.client.agent_files(agent.id).open(f"{folder}/launch.md")
    await page.reload()
    await expect(page.get_by_role("list", name="Agents that hold the folder")).to_contain_text(
        "launch.md, lines 1 to 3"
    )
    await expect(page.locator("details", has_text="launch.md")).to_contain_text(f"open in {agent.name}")


async def test_an_upload_shows_its_progress_and_is_cancelled(page: Page, console_mesh: Mesh) -> None:
    folder = await console_mesh.client.folders.create(new_name("slow"))
    held = asyncio.Event()
    await page.route("**/UploadFile", lambda route: held.wait())
    await page.goto(f"/console/#/files/{folder.id}")
    file = {"name": "late.txt", "mimeType": "text/plain", "buffer": b"late"}
    await page.get_by_label("Upload files").set_input_files([file])  # type: ignore[list-item]
    await expect(page.get_by_role("progressbar", name="Upload of late.txt")).to_be_visible()
    await page.get_by_role("button", name="Cancel late.txt").click()
    await expect(page.get_by_role("progressbar")).to_have_count(0)
    held.set()
    await expect(page.get_by_text("The folder is empty.")).to_be_visible()


async def test_a_group_is_created_and_shows_who_speaks(page: Page, console_mesh: Mesh, fake_model: FakeOpenAI) -> None:
    goes_on = asyncio.Event()
    names = [new_name("ada"), new_name("bob")]
    for name in names:
        await console_mesh.client.agents.create(name, model="openai/fake-model")
    await page.get_by_role("link", name="Groups").click()
    await expect(page.get_by_text("There is no group yet.")).to_be_visible()
    await page.get_by_role("button", name="New group").click()
    await page.get_by_label("Name").fill("picnic")
    for name in names:
        await page.get_by_role("checkbox", name=name).check()
    await page.get_by_role("button", name="Create group").click()
    await expect(page.get_by_role("heading", name="picnic")).to_be_visible()

    fake_model.script = [Reply(text="I bring tea.", gates=(goes_on,)), Reply(text="I bring bread.")]
    graph = page.get_by_role("group", name="The graph of picnic")
    await expect(graph.get_by_role("link")).to_have_count(2)
    await page.get_by_label("Message to picnic").fill("Who brings what?")
    await page.keyboard.press("Enter")
    await expect(graph.get_by_role("link", name=f"{names[0]}, member, speaks now")).to_be_visible()
    goes_on.set()
    for _ in range(2):
        turns = page.locator(".turn")
        await expect(turns).to_have_count(2)
        await expect(turns.nth(0)).to_contain_text("I bring tea.")
        await expect(turns.nth(1)).to_contain_text("I bring bread.")
        await expect(graph.get_by_role("link", name=f"{names[1]}, member, 1 turn")).to_be_visible()
        await page.reload()


async def test_a_run_of_a_group_is_cancelled(page: Page, console_mesh: Mesh, fake_model: FakeOpenAI) -> None:
    fake_model.script = [Reply(text="Never said.", gates=(asyncio.Event(),))]
    member = await console_mesh.client.agents.create(new_name("ada"), model="openai/fake-model")
    group = await console_mesh.client.groups.create([member.id], description="choir")
    await page.goto(f"/console/#/groups/{group.id}")
    await page.get_by_label("Message to choir").fill("Sing.")
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Cancel the run").click()
    await expect(page.get_by_role("button", name="Cancel the run")).to_have_count(0)
    await expect(page.get_by_role("group", name="The graph of choir")).not_to_contain_text("speaks")
    runs = [run async for run in console_mesh.client.runs.list(group_id=group.id)]
    assert {run.status for run in runs} == {runs_pb2.RUN_STATUS_CANCELLED}


async def test_the_mesh_shows_a_service_that_is_down_and_what_turns_cost(browser: Browser, tmp_path: Path) -> None:
    async with Mesh(tmp_path, gateway=True) as mesh:
        agent = await mesh.client.agents.create(new_name("ada"))
        page = await browser.new_page()
        await page.goto(f"http://{mesh.addresses['gateway']}/console/#/mesh")
        services = page.get_by_role("list", name="Services")
        await expect(services.get_by_text("answers", exact=True)).to_have_count(7)
        await expect(services.get_by_role("listitem").filter(has_text="orchestrator")).to_contain_text("runs waiting")
        await agent.ask("My name is Ada.")
        await expect(page.get_by_role("img", name="Tokens per second")).to_be_visible()
        await page.set_viewport_size({"width": 360, "height": 740})  # the charts become narrower with the window
        await page.wait_for_function("() => document.querySelector('main').scrollWidth <= innerWidth")
        await mesh.stop("tools")
        down = services.get_by_role("listitem").filter(has_text="The log of tools says why")
        await expect(down).to_contain_text("cannot be reached")
        await mesh.start("tools")
        await expect(services.get_by_text("answers", exact=True)).to_have_count(7)
        await mesh.stop("gateway")
        # Of the others, nothing is known then.
        await expect(services.get_by_text("unknown", exact=True)).to_have_count(6)
        await expect(services.get_by_text("down", exact=True)).to_have_count(1)
        await page.close()


async def test_the_metrics_of_the_mesh_are_not_shown_to_other_organizations(browser: Browser, tmp_path: Path) -> None:
    """All organizations see which services answer."""
    keys = tmp_path / "keys"
    keys.write_text("k" * 32)
    settings = {name: {"auth_key_file": str(keys)} for name in ("gateway", *STORE_NAMES)}
    tenant = Principal(new_id("org"), new_id("user"))
    async with Mesh(tmp_path / "data", gateway=True, in_memory=True, settings=settings) as mesh:
        for principal, is_shown in ((tenant, False), (DEFAULT_PRINCIPAL, True)):
            page = await browser.new_page()
            await page.goto(f"http://{mesh.addresses['gateway']}/console/#/mesh")
            await page.get_by_label("Token").fill(mint_token(b"k" * 32, principal, 600))
            await page.get_by_role("button", name="Log in").click()
            await expect(page.get_by_role("list", name="Services").get_by_text("answers", exact=True)).to_have_count(7)
            await expect(page.get_by_text("Turns per second")).to_have_count(int(is_shown))
            await expect(page.get_by_text("shown to tokens of the default organization")).to_have_count(1 - is_shown)
            await page.close()


async def test_secrets_of_tools_and_agents_are_set_and_never_shown(page: Page, console_mesh: Mesh) -> None:
    client, name = console_mesh.client, new_name("spell")
    source = (
        f'def {name}() -> str:\n    """Spell the key."""\n    import os\n\n    return "-".join(os.environ["API_KEY"])\n'
    )
    tool = await client.tools.create(source)
    agent = await client.agents.create(new_name("speller"), tools=[tool.name])
    for address, value in ((f"tools/{tool.id}", "abc"), (f"agents/{agent.id}/settings", "xyz")):
        await page.goto(f"/console/#/{address}")
        await page.get_by_role("button", name="Set a secret").click()
        await page.get_by_label("Name of the variable").fill("API_KEY")
        await page.get_by_label("Value").fill(value)
        await page.get_by_role("button", name="Save secret").click()
        await expect(page.get_by_role("list", name="Secrets")).to_contain_text("API_KEY")
        assert value not in await page.inner_text("main section:has(#secrets-title)")
        spelled = (await agent.run_tool(tool.name, {})).content[0].text.text
        assert spelled == "-".join(value)
    await page.get_by_role("button", name="Remove API_KEY").click()
    await page.get_by_role("button", name="Remove secret").click()
    await expect(page.get_by_text("There is no secret yet.")).to_be_visible()
    assert (await agent.run_tool(tool.name, {})).content[0].text.text == "a-b-c"


async def test_the_settings_of_an_agent_are_changed(page: Page, console_mesh: Mesh) -> None:
    agent = await console_mesh.client.agents.create(new_name("old"))
    await page.goto(f"/console/#/agents/{agent.id}/settings")
    await page.get_by_label("Name", exact=True).fill("renamed")
    await page.get_by_label("System prompt").fill("You answer briefly. {CORE_MEMORY}")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("heading", level=1, name="renamed")).to_be_visible()
    await page.get_by_label("Tool to give to the agent").select_option("grep_files")
    await page.get_by_role("button", name="Give it").click()
    held = page.get_by_role("list", name="Tools of the agent").get_by_role("listitem")
    asks = held.filter(has_text="grep_files").get_by_label("asks a person first")
    await asks.click()
    await expect(asks).to_be_checked()
    await page.get_by_role("button", name="Take conversation_search away").click()
    await expect(held.filter(has_text="conversation_search")).to_have_count(0)
    stored = (await console_mesh.client.agents.get(agent.id)).proto
    assert (stored.name, stored.system) == ("renamed", "You answer briefly. {CORE_MEMORY}")
    tools = {tool.name: tool.requires_approval for tool in stored.tools}
    assert tools["grep_files"]
    assert "conversation_search" not in tools
    await console_mesh.client.schedules.create("Say hello.", agent_id=agent.id, cron="0 9 * * mon-fri")
    await page.reload()
    schedule = page.get_by_role("list", name="Schedules").get_by_role("listitem")
    await expect(schedule).to_contain_text("Say hello.")
    await expect(schedule).to_contain_text("0 9 * * mon-fri UTC · next")


async def test_a_group_is_edited(page: Page, console_mesh: Mesh) -> None:
    """Its members and the settings of its manager. Settings that the form does not have stay."""
    client = console_mesh.client
    manager, first, second = [await client.agents.create(new_name("worker")) for _ in range(3)]
    group = await client.groups.create(
        [first.id],
        description="night",
        manager_type="sleeptime",
        manager_agent_id=manager.id,
        interval=timedelta(minutes=10),
    )
    await page.goto(f"/console/#/groups/{group.id}")
    await page.get_by_role("button", name="Edit").click()
    await page.get_by_role("checkbox", name=second.name).check()
    await page.get_by_label("Turns between runs of the members").fill("5")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("group", name="The graph of night").get_by_role("link")).to_have_count(3)
    stored = (await client.groups.get(group.id)).proto
    assert list(stored.agent_ids) == [first.id, second.id]
    assert stored.manager_config.sleeptime.sleeptime_agent_frequency == 5
    assert stored.manager_config.sleeptime.interval.seconds == 600


async def test_a_block_is_shared_with_another_agent(page: Page, console_mesh: Mesh) -> None:
    owner, other = [
        await console_mesh.client.agents.create(new_name(name), blocks=blocks)
        for name, blocks in (("owner", {"human": "Ada."}), ("other", {"persona": ""}))
    ]
    await page.goto(f"/console/#/agents/{owner.id}/memory")
    await page.get_by_text("Who holds it").click()
    holders = page.get_by_role("list", name="Agents that hold the block")
    await expect(holders.get_by_role("link")).to_have_text([owner.name])
    await page.get_by_label("Agent that gets the block").select_option(other.name)
    await page.get_by_role("button", name="Share").click()
    await expect(holders.get_by_role("link")).to_have_count(2)
    assert [block.value for block in (await other.memory()).blocks if block.label == "human"] == ["Ada."]
    await page.get_by_role("button", name=f"Detach from {other.name}").click()
    await expect(holders.get_by_role("link")).to_have_count(1)


async def test_an_mcp_server_is_authorized_by_a_person(browser: Browser, tmp_path: Path) -> None:
    """In a page of the authorization server, which sends the browser back to the gateway."""
    settings = {"tools": {"private_networks": "127.0.0.0/8"}}
    async with protected() as remote, Mesh(tmp_path, gateway=True, in_memory=True, settings=settings) as mesh:
        page = await browser.new_page()
        await page.goto(f"http://{mesh.addresses['gateway']}/console/#/tools")
        await page.get_by_role("button", name="Add a server").click()
        await page.get_by_label("Name").fill("protected")
        await page.get_by_label("URL").fill(remote.url)
        await page.get_by_label("Access").select_option("oauth")
        await page.get_by_role("button", name="Add server").click()
        await page.get_by_text("protected").click()
        await page.get_by_role("button", name="Authorize").click()
        link = page.get_by_role("link", name="Open the page of the authorization server")
        answer = await remote.approve(await link.get_attribute("href") or "")
        callback = f"http://{mesh.addresses['gateway']}/v1/tools/mcp/oauth/callback"
        returned = await browser.new_page()
        await returned.goto(f"{callback}?{urlencode(answer)}")
        await expect(returned.get_by_role("heading", name="Access authorized")).to_be_visible()
        await expect(returned.locator("main")).to_have_css("max-width", "544px")
        await returned.close()
        await expect(page.get_by_text("authorized", exact=True)).to_be_visible()
        await expect(page.locator("summary", has_text="protected")).to_contain_text("reachable")
        await page.close()
