"""The other services as the orchestrator calls them. `clients/` implements these ports over gRPC.

Every call may raise an MnemeshError: Unavailable or DeadlineExceeded if the service cannot be reached, otherwise an
error with the service's own reason. A call with a `request_id` may be repeated under it without a further effect.
"""

from dataclasses import dataclass

from mnemesh_orchestrator.ports.archival import ArchivalPort
from mnemesh_orchestrator.ports.blocks import CoreMemoryPort
from mnemesh_orchestrator.ports.episodes import EpisodesPort
from mnemesh_orchestrator.ports.files import FilesPort
from mnemesh_orchestrator.ports.recall import RecallPort
from mnemesh_orchestrator.ports.tools import ToolsPort
from mnemesh_orchestrator.ports.web import WebPort


@dataclass(frozen=True, slots=True)
class Services:
    """The services that hold a part of an agent."""

    core_memory: CoreMemoryPort
    recall: RecallPort
    episodes: EpisodesPort
    archival: ArchivalPort
    tools: ToolsPort
    web: WebPort
    files: FilesPort
