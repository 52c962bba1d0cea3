"""Fixtures of the sandbox tests: sandboxes with several sets of layers."""

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import pytest_asyncio
from mnemesh_sandbox import Level, Outcome, Sandbox, SandboxSettings, Task
from mnemesh_sandbox.inside import plan as layer
from mnemesh_testkit.databases.postgres import shared_parent
from mnemesh_testkit.timeouts import scaled

_WITHOUT_NAMESPACES = {layer.LANDLOCK, layer.SECCOMP} | ({layer.OWN_UID} if os.geteuid() == 0 else set())
PROFILES = {"all layers": None, "no namespaces": _WITHOUT_NAMESPACES}
SETTINGS = SandboxSettings(
    minimum=Level.MINIMAL,
    cpu_seconds=2,
    memory_mb=256,
    processes=24,
    disk_mb=8,
    files=2_000,
    stream_bytes=100_000,
)

Run = Callable[..., Coroutine[Any, Any, Outcome]]

_PROBED: dict[frozenset[str] | None, Sandbox] = {}


async def new_sandbox(settings: SandboxSettings, layers: Collection[str] | None = None) -> Sandbox:
    """Returns a sandbox like `Sandbox.open`. Probes the host once for each set of layers, because it takes longer."""
    key = None if layers is None else frozenset(layers)
    if key not in _PROBED:
        _PROBED[key] = await Sandbox.open(settings, layers=layers)
    return _PROBED[key].with_settings(settings).warmed(0)


@pytest_asyncio.fixture(autouse=True)
async def closed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Closes the sandboxes that a test opens, so that no process outlives its event loop."""
    opened: list[Sandbox] = []
    open_sandbox = Sandbox.open

    async def noted(settings: SandboxSettings, **options: Any) -> Sandbox:
        opened.append(await open_sandbox(settings, **options))
        return opened[-1]

    monkeypatch.setattr(Sandbox, "open", staticmethod(noted))
    yield
    for sandbox in opened:
        await sandbox.close()


every_profile = pytest.mark.parametrize("sandbox", list(PROFILES), indirect=True)
"""Runs a test with each set of layers. Without it, `make test` runs a test with all layers only."""


@pytest_asyncio.fixture(params=["all layers", pytest.param("no namespaces", marks=pytest.mark.full)])
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    """A sandbox with all layers that the host supports, and one as on a host without namespaces."""
    opened = await new_sandbox(SETTINGS, PROFILES[request.param])
    if opened.isolation.level is Level.NONE:
        pytest.skip(f"this host supports no isolation: {dict(opened.isolation.missing)}")
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def unconfined() -> AsyncIterator[Sandbox]:
    """A sandbox as on a host with neither namespaces nor Landlock: nothing confines the files of a tool."""
    if os.geteuid() != 0:
        pytest.skip("only root can change the uid of a tool")
    opened = await new_sandbox(SETTINGS, {layer.OWN_UID, layer.SECCOMP})
    yield opened
    await opened.close()


@pytest.fixture
def directories(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory in which this test creates the working directories of tools."""
    with TemporaryDirectory(dir=shared_parent()) as created:
        Path(created).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", created)
        yield Path(created)


@pytest.fixture
def run(sandbox: Sandbox) -> Run:
    """Runs the function `tool` of a source with keyword arguments."""

    async def run(source: str, *, seconds: float = scaled(60), **arguments: Any) -> Outcome:
        return await sandbox.run(Task(source, "tool", arguments), seconds)

    return run
