"""The archival service over gRPC."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import grpc
from mnemesh.archival.v1 import archives_pb2 as pb
from mnemesh.archival.v1 import archives_service_pb2 as archives_rpc
from mnemesh.archival.v1 import passages_service_pb2 as rpc
from mnemesh.archival.v1.archives_service_pb2_grpc import ArchiveServiceStub
from mnemesh.archival.v1.passages_service_pb2_grpc import PassageServiceStub
from mnemesh.types.v1.paging_pb2 import SORT_ORDER_ASCENDING
from mnemesh_kit.errors import FailedPrecondition
from mnemesh_kit.time import optional_timestamp_to_proto, timestamp_from_proto
from mnemesh_kit.whole_answers import whole_answer

from mnemesh_orchestrator.clients import deadlines
from mnemesh_orchestrator.model.archival import ArchivalSummary, PassageHit
from mnemesh_orchestrator.model.erasure import Erased

_ARCHIVE_NAME: Final = "Archival memory"


class ArchivalClient:
    """ArchivalPort over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._passages = PassageServiceStub(channel)
        self._archives = ArchiveServiceStub(channel)

    async def insert(
        self, request_id: str, agent_id: str, text: str, tags: Sequence[str] = (), *, embedder: str | None = None
    ) -> str:
        """See ArchivalPort."""
        passage = pb.Passage(text=text, tags=tags, source=pb.PASSAGE_SOURCE_AGENT)
        request = rpc.InsertPassagesRequest(
            request_id=request_id, agent_id=agent_id, passages=[passage], default_embedder=embedder or ""
        )
        response = await self._passages.InsertPassages(request, timeout=deadlines.WRITE)
        result = response.results[0]
        if result.HasField("failure"):
            # If nothing of the batch can be stored, the call fails. The contract allows this response, too.
            raise FailedPrecondition(result.failure.message, failure=result.failure.reason)
        return result.passage.id

    async def search(
        self,
        agent_id: str,
        query: str,
        *,
        further_queries: Sequence[str] = (),
        tags: Sequence[str] = (),
        match_all_tags: bool = False,
        limit: int = 10,
        surrounding: int = 0,
        start_date: str | None = None,
        end_date: str | None = None,
        time_zone: str = "UTC",
        now: datetime | None = None,
    ) -> tuple[PassageHit, ...]:
        """See ArchivalPort."""
        request = rpc.SearchPassagesRequest(
            query=query,
            further_queries=further_queries,
            mode=rpc.PASSAGE_SEARCH_MODE_HYBRID,
            limit=limit,
            passages_before=surrounding,
            passages_after=surrounding,
            reference_time=optional_timestamp_to_proto(now),
            filter=rpc.PassageFilter(
                agent_id=agent_id,
                tags=tags,
                tag_match=rpc.TAG_MATCH_ALL if match_all_tags else rpc.TAG_MATCH_ANY,
                start_date=start_date,
                end_date=end_date,
                time_zone=time_zone,
            ),
        )
        response = await whole_answer(self._passages.SearchPassages, request, seconds=deadlines.READ)
        return tuple(_hit_from_proto(hit) for hit in response.hits)

    async def summary(self, agent_id: str, if_revision: int | None = None) -> ArchivalSummary | None:
        """See ArchivalPort."""
        request = rpc.GetArchivalSummaryRequest(agent_id=agent_id, if_revision=if_revision)
        response = await self._passages.GetArchivalSummary(request, timeout=deadlines.READ)
        if response.not_modified:
            return None
        return ArchivalSummary(response.revision, response.passage_count, tuple(response.tags))

    async def attach(self, request_id: str, agent_id: str, archive_id: str) -> None:
        """See ArchivalPort."""
        request = archives_rpc.AttachArchiveRequest(request_id=request_id, agent_id=agent_id, archive_id=archive_id)
        await self._archives.AttachArchive(request, timeout=deadlines.WRITE)

    async def create(self, request_id: str, agent_id: str, embedder: str | None = None) -> str:
        """See ArchivalPort."""
        request = archives_rpc.CreateArchiveRequest(
            request_id=request_id,
            archive=pb.Archive(name=_ARCHIVE_NAME, embedder=embedder or ""),
            agent_ids=[agent_id],
            created_for_agent_id=agent_id,
        )
        return (await self._archives.CreateArchive(request, timeout=deadlines.WRITE)).archive.id

    async def archives_of(self, agent_id: str) -> tuple[str, ...]:
        """See ArchivalPort."""
        request = archives_rpc.ListArchivesRequest(
            page_size=1_000, order=SORT_ORDER_ASCENDING, filter=archives_rpc.ArchiveFilter(agent_id=agent_id)
        )
        archive_ids: list[str] = []
        while True:
            page = await self._archives.ListArchives(request, timeout=deadlines.READ)
            archive_ids += [archive.id for archive in page.archives]
            if not page.next_page_token:
                return tuple(archive_ids)
            request.page_token = page.next_page_token

    async def erase_agent(
        self, request_id: str, agent_id: str, *, unshared: bool = False, together_with: Sequence[str] = ()
    ) -> Erased:
        """See ArchivalPort."""
        request = rpc.EraseAgentRequest(
            request_id=request_id,
            agent_id=agent_id,
            delete_unshared_archives=unshared,
            together_with_agent_ids=together_with,
        )
        done = await self._passages.EraseAgent(request, timeout=deadlines.WRITE)
        return Erased(passages=done.deleted_passages, archives=done.deleted_archives)


def _hit_from_proto(hit: rpc.PassageHit) -> PassageHit:
    return PassageHit(
        id=hit.passage.id,
        text=hit.passage.text,
        tags=tuple(hit.passage.tags),
        created_at=timestamp_from_proto(hit.passage.create_time, "create_time"),
        score=hit.score,
        vector_rank=hit.vector_rank if hit.HasField("vector_rank") else None,
        text_rank=hit.text_rank if hit.HasField("text_rank") else None,
        before=tuple(passage.text for passage in hit.before),
        after=tuple(passage.text for passage in hit.after),
    )
