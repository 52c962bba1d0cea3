"""Archives and passages of the contract and of Letta's API."""

from __future__ import annotations

from mnemesh.agents.v1 import models_pb2
from mnemesh.archival.v1 import archives_pb2 as pb
from mnemesh.archival.v1 import passages_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import timestamp_to_proto

from mnemesh_gateway.letta.convert.models import embedding_config
from mnemesh_gateway.letta.convert.values import json_to_text, metadata, moment, present, set_present
from mnemesh_gateway.letta.schemas.archives import Archive, CreatePassage, Passage


def archive_from_proto(archive: pb.Archive, embedder: models_pb2.EmbeddingModel | None) -> Archive:
    """Returns an archive."""
    return Archive(
        id=archive.id,
        name=archive.name,
        description=present(archive, "description"),
        metadata=metadata(archive),
        embedding_config=embedding_config(embedder, archive.embedder),
        created_by_id=archive.provenance.created_by_id or None,
        last_updated_by_id=archive.provenance.last_updated_by_id or None,
        created_at=moment(archive, "create_time"),
        updated_at=moment(archive, "update_time"),
    )


def passage_from_proto(passage: pb.Passage) -> Passage:
    """Returns a passage."""
    return Passage(
        id=passage.id,
        text=passage.text,
        archive_id=passage.archive_id or None,
        source_id=present(passage, "folder_id"),
        file_id=present(passage, "file_id"),
        file_name=present(passage, "file_name"),
        metadata=metadata(passage) or {},
        tags=list(passage.tags),
        embedding=list(passage.embedding) or None,
        created_at=moment(passage, "create_time"),
        updated_at=moment(passage, "update_time"),
    )


def passage_to_proto(body: CreatePassage) -> pb.Passage:
    """Returns the message of a passage to insert."""
    message = pb.Passage(text=body.text, tags=body.tags or ())
    set_present(message, metadata=json_to_text(body.metadata))
    if body.created_at is not None:
        message.create_time.CopyFrom(timestamp_to_proto(body.created_at))
    return message


def inserted(response: rpc.InsertPassagesResponse) -> list[Passage]:
    """Returns the passages that were inserted.

    Raises:
        InvalidArgument: one of them was refused.
    """
    failures = [result.failure.message for result in response.results if result.HasField("failure")]
    if failures:
        raise InvalidArgument(failures[0])
    return [passage_from_proto(result.passage) for result in response.results]
