"""The list of agents: the size of their memory, and files that move them to another mesh or to another name."""

import json
from pathlib import Path
from uuid import uuid4

import pytest
from mnemesh_client import Agent
from mnemesh_testkit.mesh.in_process import Mesh
from playwright.async_api import Page, expect

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.full]


async def listed_agent(page: Page, mesh: Mesh) -> Agent:
    """Creates an agent with some memory and opens the list."""
    agent = await mesh.client.agents.create(f"ada-{uuid4().hex[:8]}", blocks={"human": "Likes tea."})
    await agent.ask("My name is Ada.")
    await mesh.client.passages.insert("The key is under the mat.", agent_id=agent.id)
    await mesh.client.facts.create("Ada lives in Rome.", agent_id=agent.id)
    await page.get_by_role("searchbox", name="Search agents by name").fill(agent.name)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("listitem")).to_have_count(1)
    return agent


async def export(page: Page, agent: Agent, directory: Path) -> Path:
    """Confirms the dialog of an export and returns the file."""
    async with page.expect_download() as waiting:
        await page.get_by_role("dialog").get_by_role("button", name="Export").click()
    downloaded = await waiting.value
    path = directory / downloaded.suggested_filename
    await downloaded.save_as(path)
    assert path.stem == agent.name
    return path


async def import_file(page: Page, path: Path, name: str) -> None:
    """Chooses a file and sends it under another name."""
    await page.get_by_role("button", name="Import").click()
    await page.get_by_label("File").set_input_files(path)
    await expect(page.get_by_role("dialog").get_by_role("status")).to_be_visible()
    await page.get_by_label("Name", exact=True).fill(name)
    await page.get_by_role("dialog").get_by_role("button", name="Import").click()


async def test_the_list_shows_the_size_of_memory(page: Page, console_mesh: Mesh) -> None:
    await listed_agent(page, console_mesh)
    await expect(page.get_by_role("listitem")).to_contain_text("1 block")
    await expect(page.get_by_role("listitem")).to_contain_text("1 passage, 1 fact")
    await expect(page.get_by_role("listitem")).to_contain_text("last run")


async def test_an_agent_is_exported_and_imported_with_everything(
    page: Page, console_mesh: Mesh, tmp_path: Path
) -> None:
    """The file is one of `mnemesh export --file`. The page shows what is in it before it sends it."""
    agent = await listed_agent(page, console_mesh)
    await page.get_by_role("button", name=f"Export {agent.name}").click()
    path = await export(page, agent, tmp_path)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert path.suffix == ".mnemesh"
    assert next(iter(records[0])) == "header"
    assert int(records[-1]["end"]["record_count"]) == len(records) - 1

    copy = f"copy-{uuid4().hex[:8]}"
    await page.get_by_role("button", name="Import").click()
    await page.get_by_label("File").set_input_files(path)
    contents = page.get_by_role("dialog").get_by_role("status")
    await expect(contents).to_contain_text(agent.name)
    await expect(contents).to_contain_text("1 passage")
    await page.get_by_label("Name", exact=True).fill(copy)
    await page.get_by_text("The options that will be sent").click()
    await expect(page.get_by_label("Options of ImportAgent")).to_contain_text(copy)
    await page.get_by_role("dialog").get_by_role("button", name="Import").click()
    await expect(page.get_by_role("dialog")).to_contain_text("1 agent imported")
    await expect(page.get_by_role("dialog")).to_contain_text("The ids are new ones.")
    await page.get_by_role("link", name="Open the agent").click()
    await expect(page.get_by_role("heading", name=copy)).to_be_visible()
    await expect(page.get_by_role("article", name="You")).to_contain_text("My name is Ada.")
    imported = await console_mesh.client.agents.find(copy)
    assert [fact.text async for fact in console_mesh.client.facts.list(agent_id=imported.id)] == ["Ada lives in Rome."]


async def test_an_agent_file_of_letta_is_exported_and_imported(page: Page, console_mesh: Mesh, tmp_path: Path) -> None:
    agent = await listed_agent(page, console_mesh)
    await page.get_by_role("button", name=f"Export {agent.name}").click()
    await page.get_by_label("Letta agent file").check()
    path = await export(page, agent, tmp_path)
    assert path.suffix == ".af"
    assert json.loads(path.read_text())["agents"][0]["name"] == agent.name
    copy = f"copy-{uuid4().hex[:8]}"
    await import_file(page, path, copy)
    await expect(page.get_by_role("dialog")).to_contain_text("1 agent imported")
    imported = await console_mesh.client.agents.find(copy)
    assert [block.label for block in (await imported.memory()).blocks] == ["human"]


async def test_a_file_that_is_no_agent_is_refused_before_it_is_sent(page: Page, tmp_path: Path) -> None:
    """The page names the line."""
    path = tmp_path / "broken.mnemesh"
    path.write_text('{"header": {"format_version": 1}}\n{"agent": {"name": 5}}\n')
    await page.get_by_role("button", name="Import").click()
    await page.get_by_label("File").set_input_files(path)
    await expect(page.get_by_role("alert")).to_contain_text("Line 2 is not a record")
    await expect(page.get_by_role("dialog").get_by_role("button", name="Import")).to_be_disabled()
    path = tmp_path / "diary.af"
    path.write_text("Dear diary")
    await page.get_by_label("File").set_input_files(path)
    await expect(page.get_by_role("alert")).to_contain_text("diary.af is not a file of an agent.")


async def test_a_file_that_the_mesh_refuses_shows_the_reason(page: Page, tmp_path: Path) -> None:
    """A record is missing."""
    path = tmp_path / "short.mnemesh"
    path.write_text('{"header": {"format_version": 7}}\n{"agent": {"name": "ada"}}\n')
    await import_file(page, path, "never")
    await expect(page.get_by_role("alert")).to_contain_text("INVALID_ARGUMENT")
