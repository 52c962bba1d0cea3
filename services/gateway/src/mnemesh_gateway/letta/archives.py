"""Archives and passages."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from mnemesh.agents.v1 import agents_service_pb2 as agents_rpc
from mnemesh.agents.v1 import models_pb2
from mnemesh.archival.v1 import archives_pb2
from mnemesh.archival.v1 import archives_service_pb2 as rpc
from mnemesh.archival.v1 import passages_service_pb2 as passages_rpc
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.paging import whole_answer
from mnemesh_letta.convert.values import fill, json_value, set_present, shown

from mnemesh_gateway.letta.mesh import Mesh, PageQuery, Stamped, list_page
from mnemesh_gateway.letta.model_settings import (
    EmbeddingConfig,
    GivenEmbeddingConfig,
    embedding_config,
    find_embedder,
    given_embedder,
)
from mnemesh_gateway.letta.operations import NO_CONTENT, Call, NoQuery, Operations, read


class Archive(Stamped, kw_only=True):
    """A collection of passages."""

    id: str
    name: str
    description: str | None = None
    embedding_config: EmbeddingConfig | None = None
    vector_db_provider: str = "native"
    metadata: dict[str, Any] | None = None


class CreateArchive(msgspec.Struct, kw_only=True):
    """An archive to create."""

    name: str
    description: str | None = None
    embedding: str | None = None
    embedding_config: GivenEmbeddingConfig | None = None


class UpdateArchive(msgspec.Struct, kw_only=True):
    """Changes of an archive. A field that is null or absent stays as it is."""

    name: str | None = None
    description: str | None = None


class Passage(Stamped, kw_only=True):
    """A passage."""

    id: str
    text: str
    archive_id: str | None = None
    source_id: str | None = None
    file_id: str | None = None
    file_name: str | None = None
    metadata: dict[str, Any] | None = None
    tags: list[str] | None = None
    embedding: list[float] | None = None
    embedding_config: dict[str, Any] | None = None
    is_deleted: bool = False


class CreatePassage(msgspec.Struct, kw_only=True):
    """A passage to insert."""

    text: str
    tags: list[str] | None = None
    metadata: dict[str, Any] | None = None
    created_at: datetime | None = None


class CreatePassages(msgspec.Struct, kw_only=True):
    """Passages to insert."""

    passages: list[CreatePassage]


class SearchAllPassages(msgspec.Struct, kw_only=True):
    """What to search in the archives of an agent, in one archive, or in all."""

    query: str | None = None
    agent_id: str | None = None
    archive_id: str | None = None
    tags: list[str] | None = None
    tag_match_mode: Literal["any", "all"] = "any"
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 50
    start_date: datetime | None = None
    end_date: datetime | None = None


class FoundPassage(msgspec.Struct, kw_only=True):
    """A passage that was found, with its score."""

    passage: Passage
    score: float
    metadata: dict[str, Any] = {}


def archive_from_proto(archive: archives_pb2.Archive, embedder: models_pb2.EmbeddingModel | None) -> Archive:
    return shown(Archive, archive, embedding_config=embedding_config(embedder, archive.embedder))


def passage_from_proto(passage: archives_pb2.Passage) -> Passage:
    return shown(
        Passage, passage, metadata=json_value(passage.metadata) or {}, embedding=list(passage.embedding) or None
    )


def passage_to_proto(body: CreatePassage) -> archives_pb2.Passage:
    """Returns the message of a passage to insert."""
    message = archives_pb2.Passage()
    fill(message, body)
    return message


def inserted(response: passages_rpc.InsertPassagesResponse) -> list[Passage]:
    """Returns the passages that were inserted.

    Raises:
        InvalidArgument: one of them was refused.
    """
    failures = [result.failure.message for result in response.results if result.HasField("failure")]
    if failures:
        raise InvalidArgument(failures[0])
    return [passage_from_proto(result.passage) for result in response.results]


operations = Operations()
_SECONDS: Final = 60.0


class ListArchives(PageQuery, kw_only=True):
    """The query of a list of archives."""

    name: str | None = None
    agent_id: str | None = None


@operations.post("/archives/")
async def create_archive(call: Call[NoQuery, CreateArchive]) -> Archive:
    """Creates an archive."""
    body = call.body
    archive = archives_pb2.Archive(name=body.name)
    set_present(archive, description=body.description, embedder=given_embedder(body.embedding, body.embedding_config))
    request = rpc.CreateArchiveRequest(archive=archive)
    return await _shown(call.mesh, (await call.write(call.mesh.archives.CreateArchive, request)).archive)


@operations.get("/archives/")
async def list_archives(call: Call[ListArchives, None]) -> list[Archive]:
    """Lists archives, newest first."""
    query = call.query
    request = rpc.ListArchivesRequest(filter=rpc.ArchiveFilter())
    set_present(request.filter, name=query.name, agent_id=query.agent_id)
    rows = await list_page(call.mesh.archives.ListArchives, request, "archives", query, default="desc")
    return [await _shown(call.mesh, row) for row in rows]


@operations.get("/archives/{archive_id}")
async def retrieve_archive(call: Call[NoQuery, None]) -> Archive:
    """Returns an archive."""
    return await _shown(call.mesh, await read_archive(call))


@operations.patch("/archives/{archive_id}")
async def modify_archive(call: Call[NoQuery, UpdateArchive]) -> Archive:
    """Updates the name and the description of an archive."""
    request = rpc.UpdateArchiveRequest(archive=archives_pb2.Archive(id=call.path["archive_id"]))
    request.update_mask.paths.extend(fill(request.archive, call.body))
    if not request.update_mask.paths:
        return await _shown(call.mesh, await read_archive(call))
    return await _shown(call.mesh, (await call.write(call.mesh.archives.UpdateArchive, request)).archive)


@operations.delete("/archives/{archive_id}", status=NO_CONTENT)
async def delete_archive(call: Call[NoQuery, None]) -> None:
    """Deletes an archive with its passages."""
    await read_archive(call)
    await call.write(call.mesh.archives.DeleteArchive, rpc.DeleteArchiveRequest(archive_id=call.path["archive_id"]))


@operations.post("/archives/{archive_id}/passages")
async def create_passage_in_archive(call: Call[NoQuery, CreatePassage]) -> Passage:
    """Inserts a passage into an archive."""
    (passage,) = await _insert(call, [call.body])
    return passage


@operations.post("/archives/{archive_id}/passages/batch")
async def create_passages_in_archive(call: Call[NoQuery, CreatePassages]) -> list[Passage]:
    """Inserts passages into an archive."""
    return await _insert(call, call.body.passages) if call.body.passages else []


@operations.delete("/archives/{archive_id}/passages/{passage_id}", status=NO_CONTENT)
async def delete_passage_from_archive(call: Call[NoQuery, None]) -> None:
    """Deletes a passage of an archive."""
    passage_id = call.path["passage_id"]
    passage = (await read(call.mesh.passages.GetPassage, passages_rpc.GetPassageRequest(passage_id=passage_id))).passage
    if passage.archive_id != call.path["archive_id"]:
        raise NotFound(f"{call.path['archive_id']} has no passage {passage_id}.")
    await call.write(call.mesh.passages.DeletePassage, passages_rpc.DeletePassageRequest(passage_id=passage_id))


async def read_archive(call: Call[Any, Any]) -> archives_pb2.Archive:
    request = rpc.GetArchiveRequest(archive_id=call.path["archive_id"])
    return (await read(call.mesh.archives.GetArchive, request)).archive


async def _shown(mesh: Mesh, archive: archives_pb2.Archive) -> Archive:
    return archive_from_proto(archive, await find_embedder(mesh, archive.embedder))


async def _insert(call: Call[Any, Any], passages: list[CreatePassage]) -> list[Passage]:
    request = passages_rpc.InsertPassagesRequest(
        archive_id=call.path["archive_id"],
        passages=[passage_to_proto(passage) for passage in passages],
    )
    return inserted(await call.write(call.mesh.passages.InsertPassages, request))


@operations.post("/passages/search")
async def search_passages(call: Call[NoQuery, SearchAllPassages]) -> list[FoundPassage]:
    """Searches passages, best first. Without a query, it lists the newest with the score 0."""
    body = call.body
    if body.agent_id:
        await read(call.mesh.agents.GetAgent, agents_rpc.GetAgentRequest(agent_id=body.agent_id))
    match = passages_rpc.TAG_MATCH_ALL if body.tag_match_mode == "all" else passages_rpc.TAG_MATCH_ANY
    filters = passages_rpc.PassageFilter(tags=body.tags or (), tag_match=match)
    set_present(
        filters,
        agent_id=body.agent_id or None,
        archive_id=body.archive_id or None,
        start_date=body.start_date.isoformat() if body.start_date else None,
        end_date=body.end_date.isoformat() if body.end_date else None,
    )
    if not body.query:
        newest = passages_rpc.ListPassagesRequest(filter=filters)
        page = PageQuery(limit=body.limit)
        rows = await list_page(call.mesh.passages.ListPassages, newest, "passages", page, default="desc")
        return [FoundPassage(passage=passage_from_proto(row), score=0.0) for row in rows]
    request = passages_rpc.SearchPassagesRequest(query=body.query, limit=body.limit, filter=filters)
    hits = (await whole_answer(call.mesh.passages.SearchPassages, request, seconds=_SECONDS)).hits
    return [FoundPassage(passage=passage_from_proto(hit.passage), score=hit.score) for hit in hits]
