"""Adapters for the services that the files service calls."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc
from mnemesh.agents.v1 import agents_service_pb2 as agents_rpc
from mnemesh.agents.v1.agents_service_pb2_grpc import AgentServiceStub
from mnemesh.archival.v1 import archives_pb2 as pb
from mnemesh.archival.v1 import archives_service_pb2 as archives_rpc
from mnemesh.archival.v1 import passages_service_pb2 as rpc
from mnemesh.archival.v1.archives_service_pb2_grpc import ArchiveServiceStub
from mnemesh.archival.v1.passages_service_pb2_grpc import PassageServiceStub
from mnemesh_kit.errors import AlreadyExists, FailedPrecondition
from mnemesh_kit.network import failure_of_connection
from mnemesh_kit.paging import whole_answer

from mnemesh_files.errors import ArchiveGone, EmbedderUnknown

if TYPE_CHECKING:
    import httpx2  # it is loaded where a model reads pictures

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
_ANSWER_SECONDS: Final = 120.0
_CONNECT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class FolderArchive:
    id: str
    embedder: str
    """The handle of its embedder, as "provider/model"."""


@dataclass(frozen=True, slots=True)
class NewPassage:
    """A passage to be stored."""

    id: str
    text: str
    position: int
    """The position in the file, from 0."""


@dataclass(frozen=True, slots=True)
class FoundPassage:
    """A passage that a search found."""

    id: str
    file_id: str
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class FoundPassages:
    """The result of a search, best first."""

    passages: tuple[FoundPassage, ...] = ()
    degraded: bool = False
    """True if only words were searched, because the embedder did not answer."""


class PictureUnreadable(Exception):
    """The model returned no text for a picture. The message states the cause, as the end of a sentence."""


class AgentsClient:
    """The agents of the orchestrator. Calls act for the current principal."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._agents = AgentServiceStub(channel)

    async def record_folders(self, agent_id: str, revision: int, *, holds_folders: bool) -> None:
        """Tells the orchestrator whether an agent holds folders, as of a revision of its directories.

        A lower revision than that of an earlier call changes nothing.

        Raises:
            NotFound: there is no such agent.
            FailedPrecondition: the agent is being created.
            Unavailable, DeadlineExceeded: the orchestrator does not answer.
        """
        request = agents_rpc.RecordFoldersRequest(
            agent_id=agent_id, holds_folders=holds_folders, directories_revision=revision
        )
        await self._agents.RecordFolders(request, timeout=RECORD_SECONDS)


class ArchivalClient:
    """The archives of folders and the passages of files. All calls act for the current principal.

    Every mutation is idempotent: a repeated call with the same request id has the same result. All methods raise
    Unavailable and DeadlineExceeded.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._passages = PassageServiceStub(channel)
        self._archives = ArchiveServiceStub(channel)

    async def create_archive(self, request_id: str, name: str, embedder: str) -> FolderArchive:
        """Creates an archive. An empty embedder selects the default. Raises EmbedderUnknown."""
        archive = pb.Archive(name=name, embedder=embedder)
        request = archives_rpc.CreateArchiveRequest(request_id=request_id, archive=archive)
        try:
            created = (await self._archives.CreateArchive(request, timeout=WRITE_SECONDS)).archive
        except EmbedderUnknown as error:
            raise EmbedderUnknown(error.message, field="folder.embedder") from error
        return FolderArchive(created.id, created.embedder)

    async def delete_archive(self, request_id: str, archive_id: str) -> None:
        """Deletes an archive with its passages. One that does not exist is not an error."""
        request = archives_rpc.DeleteArchiveRequest(request_id=request_id, archive_id=archive_id)
        try:
            await self._archives.DeleteArchive(request, timeout=WRITE_SECONDS)
        except ArchiveGone:
            return

    async def delete_passages_of_file(self, archive_id: str, file_id: str) -> int:
        """Deletes all passages of a file; returns their number. Raises ArchiveGone."""
        deleted = 0
        while True:
            request = rpc.DeletePassagesRequest(archive_id=archive_id, file_id=file_id)
            response = await self._passages.DeletePassages(request, timeout=WRITE_SECONDS)
            deleted += response.deleted_passages
            if not response.has_more:
                return deleted

    async def delete_passages(self, archive_id: str, passage_ids: Sequence[str]) -> None:
        """Deletes at most 1000 passages; those that do not exist are ignored. Raises ArchiveGone."""
        request = rpc.DeletePassagesRequest(archive_id=archive_id, passage_ids=passage_ids)
        await self._passages.DeletePassages(request, timeout=WRITE_SECONDS)

    async def insert_passages(
        self, request_id: str, archive_id: str, folder_id: str, file: tuple[str, str], passages: Sequence[NewPassage]
    ) -> None:
        """Stores at most 1000 passages of one file, consecutive parts of its text.

        A passage that was stored before by the same request, or is known under its id, is not stored again.

        Args:
            request_id: of this batch.
            archive_id: the archive of the folder.
            folder_id: the folder.
            file: the id and the name of the file.
            passages: the passages.

        Raises:
            ArchiveGone: the archive does not exist.
        """
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
    """Searches of the passages of files."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._passages = PassageServiceStub(channel)

    async def search(
        self, query: str, archive_ids: Sequence[str], file_ids: Sequence[str], limit: int
    ) -> FoundPassages:
        """Returns passages of archives by similarity and words. File ids restrict the search; none search all files.

        Raises:
            Unavailable, DeadlineExceeded: archival does not answer.
        """
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


class PictureReader:
    """Turns pictures into text, by an OpenAI-compatible API.

    The key is sent in the Authorization header only; it is in no error.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str,
        *,
        transport: "httpx2.AsyncBaseTransport | None" = None,
    ) -> None:
        """Opens a client without a connection.

        Args:
            base_url: The URL of the API, for example "https://api.openai.com/v1".
            model: The name of a model that can see.
            api_key: The key, or "".
            transport: Carries the requests; None selects connections.
        """
        import httpx2  # noqa: PLC0415

        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._model = model
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx2.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS)
        self._client = httpx2.AsyncClient(headers=headers, timeout=timeout, transport=transport)

    async def read(self, picture: bytes, media_type: str) -> str:
        """Returns the text in a picture and what it shows, as Markdown.

        Args:
            picture: The file of the picture.
            media_type: Its type: image/png, image/jpeg, image/gif or image/webp.

        Raises:
            PictureUnreadable: The model cannot be reached, refuses the picture, or answers without text.
        """
        import httpx2  # noqa: PLC0415

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
        """Closes its connections."""
        await self._client.aclose()


def _text(response: "httpx2.Response") -> str:
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
