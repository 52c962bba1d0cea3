"""Writes docs/pictures/console-light.webp and console-dark.webp: the console with a mesh in this process.

Needs a Chromium of the machine.
"""

import asyncio
import base64
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from mnemesh_testkit.mesh.in_process import Mesh
from playwright.async_api import Browser, async_playwright

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
SAID = (
    "My name is Ada.",
    "Remember that the launch is on Friday at ten.",
    "When is the launch?",
)


async def main() -> None:
    """Talks with an agent, and takes a picture of its context in both themes."""
    program = shutil.which("chromium") or sys.exit("mnemesh: no chromium was found")
    with TemporaryDirectory() as directory:
        async with Mesh(Path(directory), gateway=True, in_memory=True) as mesh, async_playwright() as playwright:
            agent = await mesh.client.agents.create(
                "ada", blocks={"human": "", "persona": "I look after the house of Ada, and remember what I am told."}
            )
            for text in SAID:
                await agent.ask(text)
            browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            url = f"http://{mesh.addresses['gateway']}/console/#/agents/{agent.id}/context"
            for theme in ("light", "dark"):
                await take(browser, url, theme)
            await browser.close()


async def take(browser: Browser, url: str, theme: Literal["light", "dark"]) -> None:
    """Writes the picture of one theme."""
    page = await browser.new_page(viewport={"width": 1120, "height": 720}, color_scheme=theme)
    await page.goto(url)
    await page.get_by_role("button", name="Core memory").click()
    await page.mouse.move(0, 0)
    session = await page.context.new_cdp_session(page)
    picture = await session.send("Page.captureScreenshot", {"format": "webp", "quality": 82})
    (PICTURES / f"console-{theme}.webp").write_bytes(base64.b64decode(picture["data"]))
    await page.close()


if __name__ == "__main__":
    asyncio.run(main())
