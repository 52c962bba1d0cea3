"""The archival service over gRPC."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Final

import grpc
from mnemesh.agents.v1 import agent_records_pb2 as records_pb
from mnemesh.archival.v1 import archives_pb2 as pb
from mnemesh.archival.v1 import archives_service_pb2 as archives_rpc
from mnemesh.archival.v1 import passages_service_pb2 as rpc
from mnemesh.archival.v1.archives_service_pb2_grpc import ArchiveServiceStub
from mnemesh.archival.v1.passages_service_pb2_grpc import PassageServiceStub
from mnemesh.types.v1 import paging_pb2
from mnemesh.types.v1.paging_pb2 import SORT_ORDER_ASCENDING
from mnemesh_kit.errors import FailedPrecondition, InvalidArgument
from mnemesh_kit.paging import whole_answer
from mnemesh_kit.time import optional_timestamp_to_proto, timestamp_from_proto
from mnemesh_types.archival import ArchivalSummary

from mnemesh_orchestrator.clients import deadlines
from mnemesh_orchestrator.clients.records import copy_of, items_of, map_other, named_record, record_of, stamp
from mnemesh_orchestrator.model.creation import Erased
from mnemesh_orchestrator.model.episodes import PassageHit
from mnemesh_orchestrator.model.transfers import ExportScope, ImportTarget, Outcome, Record, RecordType

_ARCHIVE_NAME: Final = "Archival memory"

_PAGE: Final = 200
_MAX_IDS: Final = 1_000


class ArchivalClient:
    """Archival memory."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._passages = PassageServiceStub(channel)
        self._archives = ArchiveServiceStub(channel)

    async def insert(
        self, request_id: str, agent_id: str, text: str, tags: Sequence[str] = (), *, embedder: str | None = None
    ) -> str:
        """Stores a passage in the agent's archive, and returns its id.

        An agent without an archive gets one with the embedder; None is the default of archival.
        """
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
        """Searches all archives of the agent (hybrid) for one query or several, best first.

        Each hit has the passages of its dialogue or document around it, as many as `surrounding` on either side.
        Expressions of time in the queries, such as "last week", are resolved from `now`. See RecallClient.search.
        """
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
        """Returns the summary of the agent's archives, or None if `if_revision` is the current revision."""
        request = rpc.GetArchivalSummaryRequest(agent_id=agent_id, if_revision=if_revision)
        response = await self._passages.GetArchivalSummary(request, timeout=deadlines.READ)
        return None if response.not_modified else ArchivalSummary.from_proto(response)

    async def attach(self, request_id: str, agent_id: str, archive_id: str) -> None:
        request = archives_rpc.AttachArchiveRequest(request_id=request_id, agent_id=agent_id, archive_id=archive_id)
        await self._archives.AttachArchive(request, timeout=deadlines.WRITE)

    async def create(self, request_id: str, agent_id: str, embedder: str | None = None) -> str:
        """Creates an archive for the agent, with which it is deleted, attaches it, and returns its id."""
        request = archives_rpc.CreateArchiveRequest(
            request_id=request_id,
            archive=pb.Archive(name=_ARCHIVE_NAME, embedder=embedder or ""),
            agent_ids=[agent_id],
            created_for_agent_id=agent_id,
        )
        return (await self._archives.CreateArchive(request, timeout=deadlines.WRITE)).archive.id

    async def archives_of(self, agent_id: str) -> tuple[str, ...]:
        """Returns the ids of the agent's archives, oldest first."""
        request = archives_rpc.ListArchivesRequest(
            page_size=1_000, order=SORT_ORDER_ASCENDING, filter=archives_rpc.ArchiveFilter(agent_id=agent_id)
        )
        archives = items_of(self._archives.ListArchives, request, "archives", deadlines.READ)
        return tuple([archive.id async for archive in archives])

    async def erase_agent(
        self, request_id: str, agent_id: str, *, unshared: bool = False, together_with: Sequence[str] = ()
    ) -> Erased:
        """Erases the agent, and the archives that were created for it or, if `unshared`, that only it holds.

        Archives that were created for an agent of `together_with`, which is erased too, are erased like its own.
        """
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


class ArchivalRecords:
    """RecordPart of the archival service."""

    types = (RecordType.ARCHIVE, RecordType.PASSAGE)

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._archives = ArchiveServiceStub(channel)
        self._passages = PassageServiceStub(channel)

    async def export(self, kind: RecordType, scope: ExportScope) -> AsyncIterator[Record]:
        filter_ = archives_rpc.ArchiveFilter(agent_id=scope.agent_id)
        async for archive in self._list(filter_):
            if kind is RecordType.ARCHIVE:
                for name in ("passage_count", "reembedding", "dimension"):
                    archive.ClearField(name)
                yield record_of(kind, archive.id, archive)
                continue
            async for passage in self._list_passages(archive.id, with_vectors=scope.with_vectors):
                yield record_of(kind, passage.id, records_pb.PassageRecord(passage=passage))

    def _list(self, filter_: archives_rpc.ArchiveFilter) -> AsyncIterator[pb.Archive]:
        request = archives_rpc.ListArchivesRequest(
            page_size=_PAGE, order=paging_pb2.SORT_ORDER_ASCENDING, filter=filter_
        )
        return items_of(self._archives.ListArchives, request, "archives")

    def _list_passages(self, archive_id: str, *, with_vectors: bool) -> AsyncIterator[pb.Passage]:
        request = rpc.ListPassagesRequest(
            page_size=_PAGE,
            order=paging_pb2.SORT_ORDER_ASCENDING,
            filter=rpc.PassageFilter(archive_id=archive_id),
            include_embedding=with_vectors,
        )
        return items_of(self._passages.ListPassages, request, "passages")

    async def find(self, target: ImportTarget, records: Sequence[Record]) -> Mapping[str, str]:
        ids = {target.ids.of("archive", record.id): record.id for record in records}
        wanted = sorted(ids)
        found: dict[str, str] = {}
        for start in range(0, len(wanted), _MAX_IDS):
            filter_ = archives_rpc.ArchiveFilter(archive_ids=wanted[start : start + _MAX_IDS])
            async for archive in self._list(filter_):
                found[ids[archive.id]] = archive.id
        return found

    async def restore(
        self, request_id: str, target: ImportTarget, records: Sequence[Record], existing: Mapping[str, str]
    ) -> Outcome:
        if records[0].type is RecordType.ARCHIVE:
            notes = [
                (record, note)
                for number, record in enumerate(records)
                if (note := await self._restore_archive(f"{request_id}/{number}", target, record))
            ]
            return Outcome(existing=len(existing), notes=tuple(notes))
        existing_count, skipped, uses = 0, [], Counter[int]()
        batches = groupby(records, key=lambda record: record.body.passage.archive_id)
        for number, (archive_id, run) in enumerate(batches):
            batch = list(run)
            request = rpc.InsertPassagesRequest(
                request_id=f"{request_id}/{number}",
                archive_id=target.ids.of("archive", archive_id),
                passages=[_passage(record.body, target) for record in batch],
                restore=True,
            )
            with named_record(batch):
                response = await self._passages.InsertPassages(request, timeout=deadlines.IMPORT)
            for record, result in zip(batch, response.results, strict=True):
                if result.HasField("failure"):
                    skipped.append((record, result.failure.message))
                elif result.duplicate:
                    existing_count += 1
                else:
                    uses[result.vector_use] += 1
        return Outcome(existing_count, tuple(skipped), vector_uses=uses)

    async def _restore_archive(self, request_id: str, target: ImportTarget, record: Record) -> str | None:
        """Creates or attaches an archive. Returns what differs from the record, if anything does."""
        archive = copy_of(record.body)
        archive.id = target.ids.of("archive", record.id)
        stamp(archive, target)
        if target.options.embedder is not None:
            archive.embedder = target.options.embedder
        own = archive.HasField("created_for_agent_id") and (
            target.ids.other(archive.created_for_agent_id) == target.agent_id
        )
        request = archives_rpc.CreateArchiveRequest(
            request_id=request_id,
            archive=archive,
            agent_ids=[target.agent_id],
            created_for_agent_id=target.agent_id if own else None,
            restore=True,
        )
        try:
            await self._archives.CreateArchive(request, timeout=deadlines.IMPORT)
        except InvalidArgument as error:
            if error.reason != "EMBEDDER_UNKNOWN" or not archive.embedder:
                error.metadata["record"] = str(record.index)
                raise
            unknown, request.archive.embedder = archive.embedder, ""
            request.request_id += "/default"
            await self._archives.CreateArchive(request, timeout=deadlines.IMPORT)
            return f"The embedder {unknown} is not configured. The archive has the default one."
        return None


def _passage(record: records_pb.PassageRecord, target: ImportTarget) -> pb.Passage:
    copy = copy_of(record.passage)
    copy.ClearField("archive_id")
    copy.id = target.ids.of("passage", copy.id)
    for name in ("agent_id", "file_id", "folder_id"):
        map_other(copy, name, target.ids)
    return copy
