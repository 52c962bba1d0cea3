"""Conversions between rows and domain values."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from mnemesh_blocks.model.authors import AgentAuthor, OwnerAuthor
from mnemesh_blocks.model.blocks import Block, Provenance
from mnemesh_blocks.model.revisions import BlockRevision, Operation


def block_from_row(row: Any) -> Block:
    """Returns the block of a row of `blocks`."""
    return Block(
        id=row.id,
        label=row.label,
        value=row.value,
        limit=row.char_limit,
        description=row.description,
        read_only=row.read_only,
        revision=row.revision,
        content_revision=row.content_revision,
        name=row.name,
        tags=_strings(row.tags),
        metadata=row.metadata,
        hidden=row.hidden,
        is_template=row.is_template,
        template_name=row.template_name,
        preserve_on_migration=row.preserve_on_migration,
        identity_ids=_strings(row.identity_ids),
        created_for_agent_id=row.created_for_agent_id,
        created_at=row.created_at,
        updated_at=row.updated_at,
        provenance=Provenance(
            created_by_id=row.created_by_id,
            last_updated_by_id=row.last_updated_by_id,
            project_id=row.project_id,
            template_id=row.template_id,
            base_template_id=row.base_template_id,
            deployment_id=row.deployment_id,
            entity_id=row.entity_id,
        ),
    )


def block_to_row(block: Block, organization_id: str) -> dict[str, Any]:
    """Returns the column values of a block."""
    origin = block.provenance
    return {
        "id": block.id,
        "organization_id": organization_id,
        "label": block.label,
        "value": block.value,
        "char_limit": block.limit,
        "description": block.description,
        "read_only": block.read_only,
        "revision": block.revision,
        "content_revision": block.content_revision,
        "name": block.name,
        "tags": msgspec.json.encode(block.tags).decode(),
        "metadata": block.metadata,
        "hidden": block.hidden,
        "is_template": block.is_template,
        "template_name": block.template_name,
        "preserve_on_migration": block.preserve_on_migration,
        "identity_ids": msgspec.json.encode(block.identity_ids).decode(),
        "created_for_agent_id": block.created_for_agent_id,
        "created_at": block.created_at,
        "updated_at": block.updated_at,
        "created_by_id": origin.created_by_id,
        "last_updated_by_id": origin.last_updated_by_id,
        "project_id": origin.project_id,
        "template_id": origin.template_id,
        "base_template_id": origin.base_template_id,
        "deployment_id": origin.deployment_id,
        "entity_id": origin.entity_id,
    }


def revision_from_row(row: sa.Row[Any]) -> BlockRevision:
    """Returns the change of a row of `block_revisions`."""
    return BlockRevision(
        block_id=row.block_id,
        revision=row.revision,
        operation=Operation(row.operation),
        label=row.label,
        value=row.value,
        description=row.description,
        limit=row.char_limit,
        read_only=row.read_only,
        author=(
            OwnerAuthor(row.subject_id or "")
            if row.agent_id is None
            else AgentAuthor(row.agent_id, row.tool_call_id, row.run_id)
        ),
        created_at=row.created_at,
        parent=row.parent,
        previous_value=getattr(row, "previous_value", None),
    )


def revision_to_row(revision: BlockRevision, organization_id: str) -> dict[str, Any]:
    """Returns the column values of a change."""
    match revision.author:
        case AgentAuthor(agent_id, tool_call_id, run_id):
            author = {"agent_id": agent_id, "tool_call_id": tool_call_id, "run_id": run_id, "subject_id": None}
        case OwnerAuthor(subject_id):
            author = {"agent_id": None, "tool_call_id": None, "run_id": None, "subject_id": subject_id}
    return {
        "block_id": revision.block_id,
        "revision": revision.revision,
        "organization_id": organization_id,
        "operation": revision.operation.value,
        "parent": revision.parent,
        "label": revision.label,
        "value": revision.value,
        "description": revision.description,
        "char_limit": revision.limit,
        "read_only": revision.read_only,
        "created_at": revision.created_at,
        **author,
    }


def _strings(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...]) if text != "[]" else ()
