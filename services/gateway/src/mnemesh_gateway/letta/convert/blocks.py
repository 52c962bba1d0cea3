"""Blocks of the contract and of Letta's API."""

from __future__ import annotations

from mnemesh.blocks.v1 import blocks_pb2 as pb
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc

from mnemesh_gateway.letta.convert.values import json_to_text, metadata, moment, present, provenance, set_present
from mnemesh_gateway.letta.schemas.blocks import Block, CreateBlock, UpdateBlock


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
