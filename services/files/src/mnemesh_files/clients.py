"""Adapters for the services that the files service calls."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final

import grpc
import httpx2
from mnemesh.agents.v1 import agents_service_pb2 as agents_rpc
from mnemesh.agents.v1.agents_service_pb2_grpc import AgentServiceStub
from mnemesh.archival.v1 import archives_pb2 as pb
from mnemesh.archival.v1 import archives_service_pb2 as archives_rpc
from mnemesh.archival.v1 import passages_service_pb2 as rpc
from mnemesh.archival.v1.archives_service_pb2_grpc import ArchiveServiceStub
from mnemesh.archival.v1.passages_service_pb2_grpc import PassageServiceStub
from mnemesh_kit.errors import AlreadyExists, FailedPrecondition
from mnemesh_kit.network import failure_of_connection
from mnemesh_kit.whole_answers import whole_answer

from mnemesh_files.errors import ArchiveGone, EmbedderUnknown
from mnemesh_files.ports import FolderArchive, FoundPassage, FoundPassages, NewPassage, PictureUnreadable

RECORD_SECONDS: Final = 5.0

WRITE_SECONDS: Final = 10.0
EMBED_SECONDS: Final = 60.0
"""The time limit of an insertion, within which archival embeds the passages."""
_EXISTS: Final = "ALREADY_EXISTS"

SEARCH_SECONDS: Final = 5.0

_PROMPT: Final = (
    "Write down all text in this picture exactly, in reading order, as Markdown; tables as Markdown tables. Then "
    "describe in a few sentences what the picture shows beyond its text. Answer with that only."
)
_MAX_TOKENS: Final = 4_000
_MAX_ANSWER_BYTES: Final = 1_000_000
_CONNECT_SECONDS: Final = 5.0


class AgentsClient:
    """AgentsPort over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._agents = AgentServiceStub(channel)

    async def record_folders(self, agent_id: str, revision: int, *, holds_folders: bool) -> None:
        """See AgentsPort."""
        request = agents_rpc.RecordFoldersRequest(
            agent_id=agent_id, holds_folders=holds_folders, directories_revision=revision
        )
        await self._agents.RecordFolders(request, timeout=RECORD_SECONDS)


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


class PassageSearchClient:
    """PassageSearchPort over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._passages = PassageServiceStub(channel)

    async def search(
        self, query: str, archive_ids: Sequence[str], file_ids: Sequence[str], limit: int
    ) -> FoundPassages:
        """See PassageSearchPort."""
        request = rpc.SearchPassagesRequest(
            query=query,
            mode=rpc.PASSAGE_SEARCH_MODE_HYBRID,
            limit=limit,
            filter=rpc.PassageFilter(archive_ids=archive_ids, file_ids=file_ids),
        )
        response = await whole_answer(self._passages.SearchPassages, request, seconds=SEARCH_SECONDS)
        found = (
            FoundPassage(hit.passage.id, hit.passage.file_id, hit.passage.text, hit.score) for hit in response.hits
        )
        return FoundPassages(tuple(found), response.degraded)


class OpenAiVision:
    """See PictureReader. The key is sent in the Authorization header only; it is in no error."""

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str,
        *,
        timeout_seconds: float = 120.0,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Opens a client without a connection.

        Args:
            base_url: The URL of the API, for example "https://api.openai.com/v1".
            model: The name of a model that can see.
            api_key: The key, or "".
            timeout_seconds: The longest time of one answer.
            transport: Carries the requests; None selects connections.
        """
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._model = model
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx2.Timeout(timeout_seconds, connect=_CONNECT_SECONDS)
        self._client = httpx2.AsyncClient(headers=headers, timeout=timeout, transport=transport)

    async def read(self, picture: bytes, media_type: str) -> str:
        """See PictureReader.read."""
        url = f"data:{media_type};base64,{base64.b64encode(picture).decode()}"
        parts = [{"type": "text", "text": _PROMPT}, {"type": "image_url", "image_url": {"url": url}}]
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": parts}],
            "max_completion_tokens": _MAX_TOKENS,
        }
        try:
            response = await self._client.post(self._url, json=body)
        except httpx2.HTTPError as error:
            raise PictureUnreadable(f"the model cannot be reached: {failure_of_connection(self._url, error)}") from None
        if response.status_code != httpx2.codes.OK:
            raise PictureUnreadable(f"the model answered with the status {response.status_code}")
        return _text(response)

    async def close(self) -> None:
        """See PictureReader.close."""
        await self._client.aclose()


def _text(response: httpx2.Response) -> str:
    try:
        if len(response.content) > _MAX_ANSWER_BYTES:
            raise PictureUnreadable("the answer of the model is too long")
        answer: Any = response.json()
        text = answer["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError):
        raise PictureUnreadable("the answer of the model cannot be read") from None
    if not isinstance(text, str) or not text.strip():
        raise PictureUnreadable("the model answered without text")
    return text
