"""Archives and passages."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
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
from mnemesh_kit.errors import InvalidArgument

from mnemesh_orchestrator.clients import deadlines
from mnemesh_orchestrator.clients.records.messages import copy_of, map_other, named_record, record_of
from mnemesh_orchestrator.model.transfers import ExportScope, ImportTarget, Outcome, Record, RecordType

_PAGE: Final = 200
_MAX_IDS: Final = 1_000


class ArchivalRecords:
    """RecordPart of the archival service."""

    types = (RecordType.ARCHIVE, RecordType.PASSAGE)

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._archives = ArchiveServiceStub(channel)
        self._passages = PassageServiceStub(channel)

    async def export(self, kind: RecordType, scope: ExportScope) -> AsyncIterator[Record]:
        """See RecordPart."""
        filter_ = archives_rpc.ArchiveFilter(agent_id=scope.agent_id)
        async for archive in self._list(filter_):
            if kind is RecordType.ARCHIVE:
                for name in ("passage_count", "reembedding", "dimension"):
                    archive.ClearField(name)
                yield record_of(kind, archive.id, archive)
                continue
            async for passage in self._list_passages(archive.id, with_vectors=scope.with_vectors):
                body = records_pb.PassageRecord(passage=passage)
                if passage.embedding:
                    body.embedder = passage.embedded_by.handle
                yield record_of(kind, passage.id, body)

    async def _list(self, filter_: archives_rpc.ArchiveFilter) -> AsyncIterator[pb.Archive]:
        request = archives_rpc.ListArchivesRequest(
            page_size=_PAGE, order=paging_pb2.SORT_ORDER_ASCENDING, filter=filter_
        )
        while True:
            page = await self._archives.ListArchives(request, timeout=deadlines.IMPORT)
            for archive in page.archives:
                yield archive
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def _list_passages(self, archive_id: str, *, with_vectors: bool) -> AsyncIterator[pb.Passage]:
        request = rpc.ListPassagesRequest(
            page_size=_PAGE,
            order=paging_pb2.SORT_ORDER_ASCENDING,
            filter=rpc.PassageFilter(archive_id=archive_id),
            include_embedding=with_vectors,
        )
        while True:
            page = await self._passages.ListPassages(request, timeout=deadlines.IMPORT)
            for passage in page.passages:
                yield passage
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def find(self, target: ImportTarget, records: Sequence[Record]) -> Mapping[str, str]:
        """See RecordPart."""
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
        """See RecordPart."""
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
        for name in ("created_by_id", "last_updated_by_id"):
            map_other(archive.provenance, name, target.ids)
        if target.options.project_id is not None:
            archive.provenance.project_id = target.options.project_id
        if target.options.embedder is not None:
            archive.embedder = target.options.embedder
        for name in ("create_time", "update_time"):
            if not archive.HasField(name):
                getattr(archive, name).GetCurrentTime()
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
    if copy.embedding and not copy.HasField("embedded_by") and record.embedder:
        identity = pb.EmbedderIdentity(handle=record.embedder, dimension=len(copy.embedding))
        copy.embedded_by.CopyFrom(identity)
    for name in ("agent_id", "file_id", "folder_id"):
        map_other(copy, name, target.ids)
    return copy
