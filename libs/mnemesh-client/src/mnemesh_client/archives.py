"""Archival memory: archives and the passages in them."""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

from mnemesh.archival.v1 import (
    archives_pb2,
    archives_service_pb2,
    archives_service_pb2_grpc,
    embeddings_service_pb2,
    embeddings_service_pb2_grpc,
    passages_service_pb2,
    passages_service_pb2_grpc,
)
from mnemesh_kit.errors import DeadlineExceeded, InvalidArgument, MnemeshError
from mnemesh_kit.retries import Backoff

from mnemesh_client.inputs import SearchModeName, json_text, optional_timestamp, present_fields, update_request
from mnemesh_client.paging import Order, paginate, sort_order, whole_answer
from mnemesh_client.patience import Patience
from mnemesh_client.results import Hits
from mnemesh_client.transport import Channel, sleep

_EMBEDDING_SECONDS = 60.0
TagMatchName = Literal["any", "all"]
_POLLS: Final = Backoff(first=0.1, maximum=2.0, jitter=0.0)


class EmbeddingsClient:
    """Calls of EmbeddingService, as `client.embeddings`.

    Errors: InvalidArgument EMBEDDER_UNKNOWN; Unavailable EMBEDDER_UNAVAILABLE; FailedPrecondition PROVIDER_REFUSED.
    """

    def __init__(self, channel: Channel) -> None:
        self.stub = embeddings_service_pb2_grpc.EmbeddingServiceStub(channel)

    async def embed(self, texts: Sequence[str], *, embedder: str = "") -> embeddings_service_pb2.EmbedTextsResponse:
        """Returns one vector per text: `embeddings`, with the `dimension` and the `embedder` that made them.

        Args:
            texts: the texts. Nothing is stored.
            embedder: the embedder of archives; empty is the server's default.
        """
        request = embeddings_service_pb2.EmbedTextsRequest(embedder=embedder, texts=texts)
        return await self.stub.EmbedTexts(request, timeout=_EMBEDDING_SECONDS)


class ArchivesClient:
    """Calls of ArchiveService, as `client.archives`.

    Errors: NotFound ARCHIVE_NOT_FOUND; InvalidArgument EMBEDDER_UNKNOWN.
    """

    def __init__(self, channel: Channel, patience: float) -> None:
        self._patience = patience
        self.stub = archives_service_pb2_grpc.ArchiveServiceStub(channel)

    async def create(
        self,
        name: str,
        *,
        description: str | None = None,
        embedder: str = "",
        metadata: Mapping[str, Any] | str | None = None,
        deduplicate: bool = False,
        agent_ids: Sequence[str] = (),
    ) -> archives_pb2.Archive:
        """Creates an archive and attaches it to `agent_ids`. An empty `embedder` is the server's default."""
        archive = archives_pb2.Archive(
            name=name,
            description=description,
            embedder=embedder,
            metadata=json_text(metadata),
            deduplicate=deduplicate,
        )
        request = archives_service_pb2.CreateArchiveRequest(archive=archive, agent_ids=agent_ids)
        return (await self.stub.CreateArchive(request)).archive

    async def get(self, archive_id: str) -> archives_pb2.Archive:
        """Returns an archive."""
        return (await self.stub.GetArchive(archives_service_pb2.GetArchiveRequest(archive_id=archive_id))).archive

    def list(
        self, *, agent_id: str | None = None, order: Order | None = None, limit: int | None = None
    ) -> AsyncIterator[archives_pb2.Archive]:
        """Yields the archives of an agent or of the organization, newest first unless `order` is "asc"."""
        criteria = archives_service_pb2.ArchiveFilter(agent_id=agent_id)
        request = archives_service_pb2.ListArchivesRequest(order=sort_order(order), filter=criteria)
        return paginate(self.stub.ListArchives, request, "archives", limit)

    async def count(self, *, agent_id: str | None = None, name: str | None = None) -> int:
        """Returns the number of archives that match all arguments."""
        criteria = archives_service_pb2.ArchiveFilter(agent_id=agent_id, name=name)
        return (await self.stub.CountArchives(archives_service_pb2.CountArchivesRequest(filter=criteria))).count

    async def update(self, archive_id: str, **fields: Any) -> archives_pb2.Archive:
        """Updates the name, description, metadata or embedder of an archive. None clears a field.

        A new embedder embeds all passages again in the background. `wait` returns when that is done.
        """
        request = update_request(archives_service_pb2.UpdateArchiveRequest, "archive", archive_id, fields)
        return (await self.stub.UpdateArchive(request)).archive

    async def wait(
        self,
        archive_id: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  (seconds of the whole wait, as in `asyncio.wait_for`)
        on_progress: Callable[[archives_pb2.Archive], None] | None = None,
    ) -> archives_pb2.Archive:
        """Waits until an archive has the vectors of its new embedder, and returns the archive.

        Args:
            archive_id: the archive.
            timeout: the maximum number of seconds; None waits without a limit.
            on_progress: receives the archive after each request. Its `reembedding` has the numbers of passages.

        Raises:
            DeadlineExceeded: the time is over. The change continues.
        """
        left, end = Patience(self._patience), None if timeout is None else time.monotonic() + timeout
        for delay in _POLLS.delays():
            try:
                archive = await self.get(archive_id)
            except MnemeshError as error:
                await left.wait(error)
                continue
            left.progressed()
            if on_progress is not None:
                on_progress(archive)
            if not archive.HasField("reembedding"):
                return archive
            if end is not None and time.monotonic() + delay > end:
                raise DeadlineExceeded(f"The passages of {archive_id} are still being embedded. Wait longer.")
            await sleep(delay)
        raise AssertionError("the delays do not end")

    def agents(self, archive_id: str, *, limit: int | None = None) -> AsyncIterator[str]:
        """Yields the ids of the agents that hold an archive."""
        request = archives_service_pb2.ListArchiveAgentsRequest(archive_id=archive_id)
        return paginate(self.stub.ListArchiveAgents, request, "agent_ids", limit)

    async def attach(self, agent_id: str, archive_id: str) -> None:
        """Attaches an archive to an agent. Several agents may share one."""
        request = archives_service_pb2.AttachArchiveRequest(agent_id=agent_id, archive_id=archive_id)
        await self.stub.AttachArchive(request)

    async def detach(self, agent_id: str, archive_id: str) -> None:
        """Detaches an archive from an agent. The archive is kept."""
        request = archives_service_pb2.DetachArchiveRequest(agent_id=agent_id, archive_id=archive_id)
        await self.stub.DetachArchive(request)

    async def delete(self, archive_id: str) -> None:
        """Deletes an archive and its passages."""
        await self.stub.DeleteArchive(archives_service_pb2.DeleteArchiveRequest(archive_id=archive_id))


class PassagesClient:
    """Calls of PassageService, as `client.passages`.

    Errors: NotFound ARCHIVE_NOT_FOUND; Unavailable EMBEDDER_UNAVAILABLE; InvalidArgument.
    """

    def __init__(self, channel: Channel) -> None:
        self.stub = passages_service_pb2_grpc.PassageServiceStub(channel)

    async def insert(
        self,
        text: str,
        *,
        agent_id: str | None = None,
        archive_id: str | None = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | str | None = None,
    ) -> archives_pb2.Passage:
        """Stores one passage in an archive, or in an agent's first archive, which is created if the agent has none."""
        passage = archives_pb2.Passage(
            text=text, tags=tags, metadata=json_text(metadata), source=archives_pb2.PASSAGE_SOURCE_OWNER
        )
        results = await self.insert_many([passage], agent_id=agent_id, archive_id=archive_id)
        return results[0].passage

    async def insert_many(
        self,
        passages: Sequence[str | archives_pb2.Passage],
        *,
        agent_id: str | None = None,
        archive_id: str | None = None,
    ) -> list[passages_service_pb2.InsertResult]:
        """Stores up to 1000 passages. Returns one result per passage, in order; a passage may fail alone.

        Args:
            passages: texts, or Passage messages. One with the vector that the archive's embedder made of its text
                (`embedding`, `embedded_by`) is not embedded again.
            agent_id: store them in this agent's first archive, which is created if the agent has none.
            archive_id: store them in this archive instead.
        """
        if isinstance(passages, str):
            raise InvalidArgument("The passages must be a list of texts. For one text, use `insert`.", field="passages")
        if (agent_id is None) == (archive_id is None):
            raise InvalidArgument("Set exactly one of agent_id and archive_id.", field="target")
        request = passages_service_pb2.InsertPassagesRequest(
            **present_fields(agent_id=agent_id, archive_id=archive_id), passages=[_passage(each) for each in passages]
        )
        return list((await self.stub.InsertPassages(request)).results)

    async def get(self, passage_id: str) -> archives_pb2.Passage:
        """Returns a passage."""
        return (await self.stub.GetPassage(passages_service_pb2.GetPassageRequest(passage_id=passage_id))).passage

    def list(
        self,
        *,
        agent_id: str | None = None,
        archive_id: str | None = None,
        tags: Sequence[str] = (),
        order: Order | None = None,
        limit: int | None = None,
        vectors: bool = False,
    ) -> AsyncIterator[archives_pb2.Passage]:
        """Yields passages, newest first unless `order` is "asc"; with `vectors`, with their vectors."""
        request = passages_service_pb2.ListPassagesRequest(
            order=sort_order(order),
            include_embedding=vectors,
            filter=passages_service_pb2.PassageFilter(agent_id=agent_id, archive_id=archive_id, tags=tags),
        )
        return paginate(self.stub.ListPassages, request, "passages", limit)

    async def search(
        self,
        query: str,
        *,
        further_queries: Sequence[str] = (),
        agent_id: str | None = None,
        archive_id: str | None = None,
        tags: Sequence[str] = (),
        tag_match: TagMatchName = "any",
        start_date: str | None = None,
        end_date: str | None = None,
        time_zone: str | None = None,
        reference_time: datetime | None = None,
        mode: SearchModeName = "hybrid",
        before: int = 0,
        after: int = 0,
        rerank: bool | None = None,
        limit: int = 0,
    ) -> Hits[passages_service_pb2.PassageHit]:
        """Searches passages by words and meaning, best first.

        Queries, dates and times are as in `MessagesClient.search`; `before` and `after` count passages of the same
        dialogue or document. A `limit` of 0 is 10.
        """
        criteria = passages_service_pb2.PassageFilter(
            agent_id=agent_id,
            archive_id=archive_id,
            tags=tags,
            tag_match=passages_service_pb2.TagMatch.Value(f"TAG_MATCH_{tag_match.upper()}"),
            start_date=start_date,
            end_date=end_date,
            time_zone=time_zone,
        )
        request = passages_service_pb2.SearchPassagesRequest(
            query=query,
            further_queries=further_queries,
            mode=passages_service_pb2.PassageSearchMode.Value(f"PASSAGE_SEARCH_MODE_{mode.upper()}"),
            limit=limit,
            filter=criteria,
            reference_time=optional_timestamp(reference_time),
            passages_before=before,
            passages_after=after,
            rerank=rerank,
        )
        response = await whole_answer(self.stub.SearchPassages, request)
        return Hits(response.hits, response)

    async def update(self, passage_id: str, **fields: Any) -> archives_pb2.Passage:
        """Updates the text, tags or metadata of a passage. A new text is embedded again."""
        request = update_request(passages_service_pb2.UpdatePassageRequest, "passage", passage_id, fields)
        return (await self.stub.UpdatePassage(request)).passage

    async def delete(self, passage_id: str) -> None:
        """Deletes a passage."""
        await self.stub.DeletePassage(passages_service_pb2.DeletePassageRequest(passage_id=passage_id))

    async def delete_many(
        self, archive_id: str, passage_ids: Sequence[str] = (), *, file_id: str | None = None
    ) -> passages_service_pb2.DeletePassagesResponse:
        """Deletes passages of an archive by id, or those of a file. Returns the number, and whether more are left."""
        request = passages_service_pb2.DeletePassagesRequest(
            archive_id=archive_id, passage_ids=passage_ids, file_id=file_id
        )
        return await self.stub.DeletePassages(request)

    async def summary(self, agent_id: str) -> passages_service_pb2.GetArchivalSummaryResponse:
        """Returns the number of an agent's passages, and their tags."""
        request = passages_service_pb2.GetArchivalSummaryRequest(agent_id=agent_id)
        return await self.stub.GetArchivalSummary(request)


def _passage(value: str | archives_pb2.Passage) -> archives_pb2.Passage:
    if isinstance(value, str):
        return archives_pb2.Passage(text=value, source=archives_pb2.PASSAGE_SOURCE_OWNER)
    return value
