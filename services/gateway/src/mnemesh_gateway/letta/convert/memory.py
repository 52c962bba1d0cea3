"""Conversions of blocks, archives and passages."""

from __future__ import annotations

from mnemesh.agents.v1 import models_pb2
from mnemesh.archival.v1 import archives_pb2 as archives_pb
from mnemesh.archival.v1 import passages_service_pb2 as passages_rpc
from mnemesh.blocks.v1 import blocks_pb2 as pb
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import timestamp_to_proto

from mnemesh_gateway.letta.convert.models import embedding_config
from mnemesh_gateway.letta.convert.values import json_to_text, metadata, moment, present, provenance, set_present
from mnemesh_gateway.letta.schemas.memory import Archive, Block, CreateBlock, CreatePassage, Passage, UpdateBlock


def block_from_proto(block: pb.Block) -> Block:
    """Returns a block."""
    return Block(
        id=block.id,
        label=block.label,
        value=block.value,
        limit=block.limit,
        description=present(block, "description"),
        read_only=block.read_only,
        metadata=metadata(block) or {},
        tags=list(block.tags),
        hidden=block.hidden or None,
        is_template=block.is_template,
        template_name=present(block, "template_name"),
        preserve_on_migration=block.preserve_on_migration,
        created_at=moment(block, "create_time"),
        updated_at=moment(block, "update_time"),
        **provenance(block),
    )


def block_to_proto(block: CreateBlock, default_limit: int) -> pb.Block:
    """Returns the message of a block to create. A value that is longer than the default limit needs a limit."""
    message = pb.Block(
        label=block.label,
        value=block.value,
        read_only=block.read_only,
        is_template=block.is_template,
        preserve_on_migration=block.preserve_on_migration,
        hidden=bool(block.hidden),
        tags=block.tags or (),
    )
    set_present(
        message,
        limit=default_limit if block.limit is None else block.limit,
        description=block.description,
        template_name=block.template_name,
        metadata=json_to_text(block.metadata),
    )
    set_present(
        message.provenance,
        project_id=block.project_id,
        template_id=block.template_id,
        base_template_id=block.base_template_id,
        deployment_id=block.deployment_id,
        entity_id=block.entity_id,
    )
    return message


def update_to_proto(body: UpdateBlock, block_id: str, request_id: str) -> rpc.UpdateBlockRequest:
    """Returns the request that makes the changes of a body. Its mask is empty if there are none."""
    message = pb.Block(id=block_id)
    plain = {
        "value": body.value,
        "label": body.label,
        "limit": body.limit,
        "description": body.description,
        "metadata": json_to_text(body.metadata),
        "read_only": body.read_only,
        "hidden": body.hidden,
        "is_template": body.is_template,
        "template_name": body.template_name,
        "preserve_on_migration": body.preserve_on_migration,
    }
    set_present(message, **plain)
    paths = [name for name, value in plain.items() if value is not None]
    if body.tags is not None:
        message.tags.extend(body.tags)
        paths.append("tags")
    request = rpc.UpdateBlockRequest(request_id=request_id, block=message)
    request.update_mask.paths.extend(paths)
    return request


def archive_from_proto(archive: archives_pb.Archive, embedder: models_pb2.EmbeddingModel | None) -> Archive:
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


def passage_from_proto(passage: archives_pb.Passage) -> Passage:
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


def passage_to_proto(body: CreatePassage) -> archives_pb.Passage:
    """Returns the message of a passage to insert."""
    message = archives_pb.Passage(text=body.text, tags=body.tags or ())
    set_present(message, metadata=json_to_text(body.metadata))
    if body.created_at is not None:
        message.create_time.CopyFrom(timestamp_to_proto(body.created_at))
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
