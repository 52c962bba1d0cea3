"""Fixtures: one browser and one mesh for all tests of the console. Each test has agents of its own and a new page."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.timeouts import scaled
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright, expect

from tests.console.browsers import BrowserMissing, find_browser

SECONDS = scaled(30)
expect.set_options(timeout=SECONDS * 1000)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser(is_full: bool) -> AsyncIterator[Browser]:
    """The browser. Only the whole suite installs one."""
    try:
        program = find_browser(installs=is_full)
    except BrowserMissing as error:
        pytest.skip(f"THE CONSOLE WAS NOT TESTED: {error}")
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(
            executable_path=program.path,
            env={**os.environ, **program.environment},
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--process-per-site"],
        )
        yield running
        await running.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def fake_model() -> AsyncIterator[FakeOpenAI]:
    """The model `openai/fake-model`."""
    async with FakeOpenAI() as fake:
        yield fake


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def console_mesh(
    tmp_path_factory: pytest.TempPathFactory, fake_model: FakeOpenAI, browser: Browser
) -> AsyncIterator[Mesh]:
    """A mesh with a gateway. Without a browser, it is not started."""
    directory: Path = tmp_path_factory.mktemp("console")
    async with Mesh(directory, openai_base_url=fake_model.base_url, gateway=True, in_memory=True) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def context(browser: Browser, console_mesh: Mesh) -> AsyncIterator[BrowserContext]:
    """Opens a browser context for a module. A page that stays open keeps the process that renders the others."""
    opened = await browser.new_context(
        base_url=f"http://{console_mesh.addresses['gateway']}", viewport={"width": 1280, "height": 800}
    )
    await (await opened.new_page()).goto("/livez")
    yield opened
    await opened.close()


@pytest_asyncio.fixture(loop_scope="module")
async def page(context: BrowserContext) -> AsyncIterator[Page]:
    """A page with the console, which knows nothing of earlier ones. The test fails if the page logs an error."""
    errors: list[str] = []
    await context.clear_cookies()
    opened = await context.new_page()
    opened.set_default_timeout(SECONDS * 1000)
    opened.on("pageerror", lambda error: errors.append(str(error)))

    def note(message: ConsoleMessage) -> None:
        # The browser logs each refused call; the page shows it.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            errors.append(message.text)

    opened.on("console", note)
    await opened.goto("/")
    yield opened
    await opened.evaluate("localStorage.clear(); sessionStorage.clear()")
    await opened.close()
    assert errors == []
