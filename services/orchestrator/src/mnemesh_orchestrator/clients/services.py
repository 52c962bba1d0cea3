"""The other services, together."""

from dataclasses import dataclass

from mnemesh_orchestrator.clients.archival import ArchivalClient
from mnemesh_orchestrator.clients.blocks import BlocksClient
from mnemesh_orchestrator.clients.files import FilesClient
from mnemesh_orchestrator.clients.recall import EpisodesClient, RecallClient
from mnemesh_orchestrator.clients.tools import ToolsClient, WebClient


@dataclass(frozen=True, slots=True)
class Services:
    """The services that hold a part of an agent."""

    core_memory: BlocksClient
    recall: RecallClient
    episodes: EpisodesClient
    archival: ArchivalClient
    tools: ToolsClient
    web: WebClient
    files: FilesClient
