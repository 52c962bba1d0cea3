"""Blocks of the contract and of Letta's API."""

from __future__ import annotations

from mnemesh.blocks.v1 import blocks_pb2 as pb

from mnemesh_gateway.letta.convert.values import json_to_text, metadata, moment, present, provenance, set_present
from mnemesh_gateway.letta.schemas.blocks import Block, CreateBlock


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


def block_to_proto(block: CreateBlock) -> pb.Block:
    """Returns the message of a block to create."""
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
        limit=block.limit,
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
