"""The sandbox of the tools services in this test process: the probe of the host takes more CPU than most tests."""

from __future__ import annotations

from typing import Final

from mnemesh_sandbox import Sandbox, SandboxSettings

_OPEN: Final[dict[SandboxSettings, Sandbox]] = {}


async def probed_sandbox(settings: SandboxSettings) -> Sandbox:
    """Returns the sandbox with these settings. The first call opens it, which probes the host."""
    if settings not in _OPEN:
        _OPEN[settings] = await Sandbox.open(settings)
    return _OPEN[settings]
