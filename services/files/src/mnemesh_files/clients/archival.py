"""The archival service over gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import grpc
from mnemesh.archival.v1 import archives_pb2 as pb
from mnemesh.archival.v1 import archives_service_pb2 as archives_rpc
from mnemesh.archival.v1 import passages_service_pb2 as rpc
from mnemesh.archival.v1.archives_service_pb2_grpc import ArchiveServiceStub
from mnemesh.archival.v1.passages_service_pb2_grpc import PassageServiceStub
from mnemesh_kit.errors import AlreadyExists, FailedPrecondition

from mnemesh_files.errors import ArchiveGone, EmbedderUnknown
from mnemesh_files.ports.archival import FolderArchive, NewPassage

WRITE_SECONDS: Final = 10.0
EMBED_SECONDS: Final = 60.0
"""The time limit of an insertion, within which archival embeds the passages."""
_EXISTS: Final = "ALREADY_EXISTS"


class ArchivalClient:
    """ArchivalPort over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._passages = PassageServiceStub(channel)
        self._archives = ArchiveServiceStub(channel)

    async def create_archive(self, request_id: str, name: str, embedder: str) -> FolderArchive:
        """See ArchivalPort."""
        archive = pb.Archive(name=name, embedder=embedder)
        request = archives_rpc.CreateArchiveRequest(request_id=request_id, archive=archive)
        try:
            created = (await self._archives.CreateArchive(request, timeout=WRITE_SECONDS)).archive
        except EmbedderUnknown as error:
            raise EmbedderUnknown(error.message, field="folder.embedder") from error
        return FolderArchive(created.id, created.embedder)

    async def delete_archive(self, request_id: str, archive_id: str) -> None:
        """See ArchivalPort."""
        request = archives_rpc.DeleteArchiveRequest(request_id=request_id, archive_id=archive_id)
        try:
            await self._archives.DeleteArchive(request, timeout=WRITE_SECONDS)
        except ArchiveGone:
            return

    async def delete_passages_of_file(self, archive_id: str, file_id: str) -> int:
        """See ArchivalPort."""
        deleted = 0
        while True:
            request = rpc.DeletePassagesRequest(archive_id=archive_id, file_id=file_id)
            response = await self._passages.DeletePassages(request, timeout=WRITE_SECONDS)
            deleted += response.deleted_passages
            if not response.has_more:
                return deleted

    async def delete_passages(self, archive_id: str, passage_ids: Sequence[str]) -> None:
        """See ArchivalPort."""
        request = rpc.DeletePassagesRequest(archive_id=archive_id, passage_ids=passage_ids)
        await self._passages.DeletePassages(request, timeout=WRITE_SECONDS)

    async def insert_passages(
        self, request_id: str, archive_id: str, folder_id: str, file: tuple[str, str], passages: Sequence[NewPassage]
    ) -> None:
        """See ArchivalPort."""
        file_id, file_name = file
        request = rpc.InsertPassagesRequest(
            request_id=request_id,
            archive_id=archive_id,
            continuity=rpc.PASSAGE_CONTINUITY_CONTINUOUS,
            passages=[
                pb.Passage(
                    id=passage.id,
                    text=passage.text,
                    source=pb.PASSAGE_SOURCE_FILE,
                    file_id=file_id,
                    folder_id=folder_id,
                    file_name=file_name,
                    chunk_index=passage.position,
                )
                for passage in passages
            ],
        )
        try:
            response = await self._passages.InsertPassages(request, timeout=EMBED_SECONDS)
        except AlreadyExists:
            return  # all of them were stored by a request that archival has forgotten
        for result in response.results:
            if result.HasField("failure") and result.failure.reason != _EXISTS:
                raise FailedPrecondition(result.failure.message, failure=result.failure.reason)
