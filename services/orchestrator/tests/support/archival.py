"""The real archival service of a world, with views of what it stores."""

from typing import Any

from mnemesh.archival.v1 import archives_service_pb2 as archives_rpc
from mnemesh.archival.v1.archives_pb2 import Archive
from mnemesh.archival.v1.passages_service_pb2 import ListPassagesRequest, PassageFilter
from mnemesh.types.v1.paging_pb2 import SORT_ORDER_ASCENDING
from mnemesh_orchestrator.clients.archival import ArchivalClient
from mnemesh_orchestrator.model.creation import Erased
from mnemesh_testkit.mesh.local_services import LocalChannel

from .synchronous import run_now


class Archival(ArchivalClient):
    """Passages."""

    def __init__(self, channel: LocalChannel) -> None:
        super().__init__(channel)
        self.erased: list[str] = []
        self._inserted: list[str] = []

    async def insert(self, *arguments: Any, **more: Any) -> str:
        passage_id = await super().insert(*arguments, **more)
        self._inserted.append(passage_id)
        return passage_id

    def archives(self) -> list[Archive]:
        """All archives."""
        return list(run_now(self._archives.ListArchives(archives_rpc.ListArchivesRequest())).archives)

    def take(self, agent_id: str, archive_id: str) -> None:
        """Detaches an archive from an agent, as an owner may at any time."""
        request = archives_rpc.DetachArchiveRequest(agent_id=agent_id, archive_id=archive_id)
        run_now(self._archives.DetachArchive(request))

    async def texts(self, agent_id: str) -> list[str]:
        """The texts of an agent's passages, in the order in which they were inserted."""
        request = ListPassagesRequest(
            page_size=1000, order=SORT_ORDER_ASCENDING, filter=PassageFilter(agent_id=agent_id)
        )
        passages = (await self._passages.ListPassages(request)).passages
        return [passage.text for passage in sorted(passages, key=lambda passage: self._inserted.index(passage.id))]

    async def erase_agent(self, request_id: str, agent_id: str, **scope: Any) -> Erased:
        self.erased.append(agent_id)
        return await super().erase_agent(request_id, agent_id, **scope)
