"""The other services of a world: the real ones in this process, with views of what they store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from mnemesh_kit.time import Clock
from mnemesh_orchestrator.clients.tools import WebClient
from mnemesh_orchestrator.errors import REMOTE
from mnemesh_testkit.mesh.local_services import local_services

from .archival import Archival
from .blocks import Blocks
from .episodes import Episodes
from .recall import Recall
from .tools import FakeSandbox, Tools


@dataclass(frozen=True, slots=True)
class RealServices:
    """The services of a world."""

    blocks: Blocks
    recall: Recall
    episodes: Episodes
    archival: Archival
    tools: Tools
    web: WebClient


@asynccontextmanager
async def real_services(directory: Path, clock: Clock) -> AsyncIterator[RealServices]:
    """Opens the services over empty databases in memory."""
    sandbox = FakeSandbox()
    names, parts = ("blocks", "recall", "archival", "tools"), {"tools": {"sandbox": sandbox}}
    async with local_services(directory, *names, clock=clock, errors=REMOTE, parts=parts) as channels:
        recall = Recall(channels["recall"])
        yield RealServices(
            Blocks(channels["blocks"]),
            recall,
            Episodes(channels["recall"], recall),
            Archival(channels["archival"]),
            Tools(channels["tools"], sandbox),
            WebClient(channels["tools"]),
        )
