"""The panel Memory: blocks, passages, messages, and facts on their line of time."""

from datetime import UTC, datetime, timedelta

import pytest
from mnemesh.recall.v1.episodes_pb2 import MemoryScope, MemorySource
from mnemesh_testkit.mesh.in_process import Mesh
from playwright.async_api import Page, expect

from tests.console.steps import open_agent

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.full]


async def open_part(page: Page, name: str) -> None:
    """Opens one of the tiers."""
    await page.get_by_role("group", name="Tiers of memory").get_by_role("button", name=name).click()


async def test_a_block_is_edited_and_restored(page: Page, console_mesh: Mesh) -> None:
    """A change of somebody else is not overwritten."""
    agent = await open_agent(page, console_mesh, "memory", blocks={"human": "Likes tea."})
    block = page.get_by_role("article", name="Block human")
    await block.get_by_role("textbox").fill("Likes coffee.")
    await block.get_by_role("button", name="Save").click()
    await expect(block.get_by_text("Revision 2")).to_be_visible()
    assert (await agent.memory()).blocks[0].value == "Likes coffee."

    await block.get_by_role("textbox").fill("Likes water.")
    await agent.append("human", "Likes milk.")
    await block.get_by_role("button", name="Save").click()
    await expect(block.get_by_role("alert")).to_contain_text("BLOCK_REVISION_MISMATCH")
    assert (await agent.memory()).blocks[0].value == "Likes coffee.\nLikes milk."

    await page.reload()
    await block.get_by_text("Revision 3").click()
    await expect(block.locator(".removed").last).to_contain_text("Likes tea.")
    await block.get_by_role("button", name="Restore").last.click()
    await expect(block.get_by_role("textbox")).to_have_value("Likes tea.")


async def test_a_block_is_created_shared_detached_and_deleted(page: Page, console_mesh: Mesh) -> None:
    """The dialogs name who else holds it."""
    other = await console_mesh.client.agents.create("the other one", blocks={})
    shared = await console_mesh.client.blocks.create("house", "Three rooms.", agent_ids=[other.id])
    agent = await open_agent(page, console_mesh, "memory", blocks={})
    await expect(page.get_by_text("The agent has no blocks.")).to_be_visible()
    await page.get_by_role("button", name="Add a block").click()
    await page.get_by_label("Label", exact=True).fill("human")
    await page.get_by_role("dialog").get_by_role("button", name="Add block").click()
    await expect(page.get_by_role("article", name="Block human")).to_be_visible()

    await page.get_by_role("button", name="Attach a block").click()
    await page.get_by_role("searchbox", name="Search blocks by label").fill("house")
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Attach house").first.click()
    block = page.get_by_role("article", name="Block house")
    await expect(block.get_by_role("textbox")).to_have_value("Three rooms.")
    await block.get_by_role("button", name="Remove").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("the other one loses it too")
    await dialog.get_by_role("button", name="Detach").click()
    await expect(block).to_have_count(0)
    assert shared.id in [each.id for each in (await other.memory()).blocks]

    await page.get_by_role("article", name="Block human").get_by_role("button", name="Remove").click()
    await dialog.get_by_role("button", name="Delete").click()
    await expect(page.get_by_text("The agent has no blocks.")).to_be_visible()
    assert not (await agent.memory()).blocks


async def test_passages_are_added_and_found_by_words_tags_and_days(page: Page, console_mesh: Mesh) -> None:
    await open_agent(page, console_mesh, "memory")
    await open_part(page, "Archival")
    await expect(page.get_by_text("The archives are empty.")).to_be_visible()
    for text, tags in (
        ("The key is under the mat.", "house, door"),
        ("The key of C major has no accidentals.", "music"),
    ):
        await page.get_by_label("Text of a new passage").fill(text)
        await page.get_by_label("Tags of the new passage").fill(tags)
        await page.get_by_role("button", name="Add passage").click()
        await expect(page.get_by_text(text)).to_be_visible()
    await page.get_by_role("searchbox", name="Search passages").fill("key")
    await page.keyboard.press("Enter")
    await expect(page.locator("mark")).to_have_text(["key", "key"])
    await expect(page.locator(".hit").first).to_contain_text("words")
    await page.get_by_label("Tags of the passages").fill("house, music")
    await page.keyboard.press("Enter")
    await expect(page.locator(".hit")).to_have_count(2)
    await page.get_by_label("all of them").check()
    await expect(page.get_by_text("No passage matches this search.")).to_be_visible()
    await page.get_by_label("Tags of the passages").fill("house")
    await page.keyboard.press("Enter")
    await expect(page.locator(".hit")).to_have_count(1)
    await page.get_by_label("Last day of the passages").fill("2001-01-01")
    await expect(page.get_by_text("No passage matches this search.")).to_be_visible()
    await page.get_by_label("Last day of the passages").fill("")
    await page.locator(".hit").get_by_role("button", name="Delete").click()
    await expect(page.locator(".hit")).to_have_count(0)


async def test_facts_are_corrected_forgotten_and_restored_on_a_line_of_time(page: Page, console_mesh: Mesh) -> None:
    agent = await open_agent(page, console_mesh, "memory")
    facts = console_mesh.client.facts
    past = datetime.now(UTC) - timedelta(days=30)
    old = (await facts.create("Ada lives in Turin.", agent_id=agent.id, valid_from=past)).fact
    await facts.supersede(old.id, "Ada lives in Rome.", reason="she moved")
    await open_part(page, "Facts")
    row = page.get_by_role("list", name="Facts").locator("> li")
    await expect(row).to_have_count(1)
    await expect(row.locator(".fact-text")).to_have_text("Ada lives in Rome.")
    await expect(row.get_by_role("list", name="Superseded by it")).to_contain_text("Ada lives in Turin. until just now")
    superseded, held = row.locator(".is-superseded"), row.locator(".is-held")
    await expect(held).to_have_count(1)
    boxes = [await each.bounding_box() for each in (superseded, held)]
    assert boxes[0]
    assert boxes[1]
    assert boxes[0]["x"] < boxes[1]["x"]
    assert boxes[0]["width"] > boxes[1]["width"]

    await row.get_by_role("button", name="Correct").click()
    await page.get_by_label("What is true").fill("Ada lives in Zürich.")
    await page.get_by_label("Why").fill("a slip")
    await page.get_by_role("dialog").get_by_role("button", name="Correct", exact=True).click()
    await expect(row.locator(".fact-text")).to_have_text("Ada lives in Zürich.")
    await expect(row.get_by_role("list", name="Superseded by it").locator("li")).to_have_count(2)
    await expect(row).to_contain_text("Ada lives in Rome. until just now: a slip")

    await row.get_by_role("button", name="Forget").click()
    await page.get_by_role("button", name="Withdraw").click()
    await expect(row).to_contain_text("withdrawn")
    await row.get_by_role("button", name="Restore").click()
    await page.get_by_role("dialog").get_by_role("button", name="Restore", exact=True).click()
    await expect(row.get_by_role("button", name="Correct")).to_be_visible()

    await page.get_by_role("button", name="Add a fact").click()
    await page.get_by_label("Fact", exact=True).fill("Ada drinks tea.")
    await page.get_by_role("dialog").get_by_role("button", name="Add fact").click()
    await expect(row).to_have_count(2)
    await row.first.get_by_role("button", name="Forget").click()
    await page.get_by_role("button", name="Erase").click()
    await expect(row).to_have_count(1)
    texts = [fact.text async for fact in facts.list(agent_id=agent.id)]
    assert texts == ["Ada lives in Zürich."]


async def test_an_episode_leads_to_the_messages_that_it_was_learned_from(page: Page, console_mesh: Mesh) -> None:
    agent = await open_agent(page, console_mesh, "memory")
    await agent.ask("My name is Ada.")
    window = await console_mesh.client.messages.window(agent.proto.default_conversation_id)
    said = next(message for message in window.messages if "My name is Ada." in message.content[0].text.text)
    scope = MemoryScope(agent_id=agent.id)
    source = MemorySource(message_ids=[said.id], agent_id=agent.id)
    await console_mesh.client.episodes.commit(scope, "Ada introduced herself.", tags=["people"], source=source)
    await open_part(page, "Facts")
    row = page.get_by_role("list", name="Episodes").locator("> li")
    await expect(row).to_contain_text("Ada introduced herself.")
    await row.get_by_role("link", name="Where from").click()
    await expect(page.locator(".is-target")).to_contain_text("My name is Ada.")
