"""Writes docs/pictures/console*.webp: each panel of the console, in light and dark, with a mesh in this process.

Needs a Chromium of the machine. `console-light.webp` and `console-dark.webp` are the panel Context.
"""

import asyncio
import base64
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

from mnemesh_client import Agent
from mnemesh_testkit.mesh.in_process import Mesh
from playwright.async_api import Browser, Page, async_playwright, expect

PICTURES: Final = Path(__file__).resolve().parents[1] / "docs" / "pictures"
QUALITY: Final = 80
SAID: Final = (
    "My name is Ada.",
    "Remember that the launch is on Friday at ten.",
    "When is the launch?",
)
TOOL: Final = '''def convert(amount: float, unit: str = "kg") -> str:
    """Convert a weight to pounds.

    Args:
        amount: how much.
        unit: kg or g.
    """
    factor = {"kg": 2.2046, "g": 0.0022046}[unit]
    print("1", unit, "is", factor, "lb")
    return f"{amount * factor:.2f} lb"
'''
NOTES: Final = {
    "launch.md": "# Launch\n\nThe launch is on Friday at ten, in the large hall.\nAda opens it.\n",
    "guests.csv": "name,seats\nGrace,2\nLinus,1\nMargaret,4\n",
    "minutes.txt": "The hall has 120 seats.\n" * 60,
}


async def main() -> None:
    """Fills a mesh, and takes the pictures of its panels."""
    program = shutil.which("chromium") or sys.exit("mnemesh: no chromium was found")
    with TemporaryDirectory() as directory:
        async with Mesh(Path(directory), gateway=True, in_memory=True) as mesh, async_playwright() as playwright:
            views = await fill(mesh, Path(directory))
            browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            for old in PICTURES.glob("console*.webp"):
                old.unlink()
            for theme in ("light", "dark"):
                for name, (address, prepare) in views.items():
                    url = f"http://{mesh.addresses['gateway']}/console/#/{address}"
                    await take(browser, url, f"console-{name}{theme}", theme, prepare)
            await browser.close()


Prepare = Callable[[Page], Awaitable[None]]


async def fill(mesh: Mesh, directory: Path) -> Mapping[str, tuple[str, Prepare]]:
    """Makes agents and talks with them. Returns the address of each panel with what is done there first."""
    client = mesh.client
    ada = await client.agents.create(
        "ada", blocks={"human": "", "persona": "I look after the house of Ada, and remember what I am told."}
    )
    others = [await client.agents.create(name, blocks={"human": ""}) for name in ("planner", "cook", "gardener")]
    for text in SAID:
        await ada.ask(text)
    tool = await client.tools.create(TOOL)
    folder = await client.folders.create(
        "launch", description="What is known about the launch, for everyone who helps."
    )
    for name, content in NOTES.items():
        path = directory / name
        path.write_text(content)
        await client.files.wait((await client.files.upload(folder.id, path)).file.id)
    await ada.files.attach(folder.id)
    await ada.files.open("launch/launch.md")
    group = await client.groups.create([agent.id for agent in others], description="picnic")
    await group.ask("My name is Grace. Remember that the picnic is on Sunday.")
    return {
        "": (f"agents/{ada.id}/context", _open_core_memory),
        "agents-": ("agents", _nothing),
        "chat-": (f"agents/{ada.id}/chat", _nothing),
        "memory-": (f"agents/{ada.id}/memory", _nothing),
        "runs-": (f"agents/{ada.id}/runs", _open_a_run),
        "tools-": (f"tools/{tool.id}", _run_the_tool),
        "files-": (f"files/{folder.id}", _nothing),
        "groups-": (f"groups/{group.id}", _nothing),
        "mesh-": ("mesh", _talking(others)),
    }


async def _nothing(_page: Page) -> None:
    pass


async def _open_core_memory(page: Page) -> None:
    await page.get_by_role("button", name="Core memory").click()


async def _open_a_run(page: Page) -> None:
    await page.get_by_text(SAID[1]).first.click()
    await page.locator(".waterfall").wait_for()


async def _run_the_tool(page: Page) -> None:
    await page.get_by_label("Arguments").fill('{"amount": 12.5}')
    await page.get_by_role("button", name="Run", exact=True).click()
    await page.get_by_role("status", name="Outcome").wait_for()


def _talking(agents: list[Agent]) -> Prepare:
    """Returns what lets the agents answer for a while, so that the charts have lines."""

    async def talk(page: Page) -> None:
        await page.get_by_text("Turns per second").wait_for()
        for number in range(24):
            await asyncio.gather(*(agent.ask(f"My number is {number}.") for agent in agents[: 1 + number % 3]))
            await page.wait_for_timeout(1_200)

    return talk


async def take(browser: Browser, url: str, name: str, theme: Literal["light", "dark"], prepare: Prepare) -> None:
    """Writes the picture of one panel in one theme."""
    height = 1000 if url.endswith("#/mesh") else 720  # the charts are below the services
    page = await browser.new_page(viewport={"width": 1120, "height": height}, color_scheme=theme)
    await page.goto(url)
    await page.locator("main h1").first.wait_for()
    await expect(page.locator("main .busy")).to_have_count(0)
    await prepare(page)
    await page.mouse.move(0, 0)
    await page.evaluate("document.activeElement.blur(); document.querySelector('main').scrollTop = 0")
    session = await page.context.new_cdp_session(page)
    picture = await session.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    (PICTURES / f"{name}.webp").write_bytes(base64.b64decode(picture["data"]))
    await page.close()


if __name__ == "__main__":
    asyncio.run(main())
