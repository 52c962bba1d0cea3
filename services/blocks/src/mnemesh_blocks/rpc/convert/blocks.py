"""Blocks, revisions and authors: their messages, and back."""

from __future__ import annotations

import difflib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.types.v1 import audit_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.principal import current_principal

from mnemesh_blocks.model.blocks import (
    DEFAULT_LIMIT,
    AgentAuthor,
    Author,
    Block,
    BlockRevision,
    CoreMemory,
    Operation,
    OwnerAuthor,
    Provenance,
)
from mnemesh_blocks.model.validation import default_description, without_nul

_MAX_CALL_ID: Final = 1000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
CARRIED: Final = ("project_id", "template_id", "base_template_id", "deployment_id", "entity_id")
_OPERATIONS: Final = {
    operation: blocks_pb2.BlockOperation.Value(f"BLOCK_OPERATION_{operation.name}") for operation in Operation
}


def draft_from(message: blocks_pb2.Block) -> Block:
    """The block that a caller wants made; its id, revision, times and authorship are yet to be given."""
    description = optional(message, "description")
    return Block(
        id="",
        label=message.label,
        value=message.value,
        limit=message.limit or DEFAULT_LIMIT,
        description=default_description(message.label) if description is None else description,
        read_only=message.read_only,
        name=optional(message, "name"),
        tags=tuple(message.tags),
        metadata=optional(message, "metadata"),
        hidden=message.hidden,
        is_template=message.is_template,
        template_name=optional(message, "template_name"),
        preserve_on_migration=message.preserve_on_migration,
        identity_ids=tuple(message.identity_ids),
        created_at=_EPOCH,
        updated_at=_EPOCH,
        provenance=Provenance(**{name: optional(message.provenance, name) for name in CARRIED}),
    )


def block_from(message: blocks_pb2.Block) -> Block:
    """The block in a message that this service made; the inverse of `block_to`, for tests and clients in Python."""
    origin = message.provenance
    return replace(
        draft_from(message),
        id=message.id,
        description=optional(message, "description"),
        limit=message.limit,
        revision=message.revision,
        content_revision=message.revision,
        created_at=datetime_of(message.create_time),
        updated_at=datetime_of(message.update_time),
        provenance=Provenance(
            created_by_id=origin.created_by_id,
            last_updated_by_id=origin.last_updated_by_id,
            **{name: optional(origin, name) for name in CARRIED},
        ),
    )


def block_to(block: Block) -> blocks_pb2.Block:
    """The message of a block."""
    origin = block.provenance
    return blocks_pb2.Block(
        id=block.id,
        label=block.label,
        description=block.description,
        value=block.value,
        limit=block.limit,
        read_only=block.read_only,
        revision=block.revision,
        name=block.name,
        tags=block.tags,
        metadata=block.metadata,
        hidden=block.hidden,
        is_template=block.is_template,
        template_name=block.template_name,
        preserve_on_migration=block.preserve_on_migration,
        identity_ids=block.identity_ids,
        create_time=_timestamp(block.created_at),
        update_time=_timestamp(block.updated_at),
        provenance=audit_pb2.Provenance(
            created_by_id=origin.created_by_id,
            last_updated_by_id=origin.last_updated_by_id,
            project_id=origin.project_id,
            template_id=origin.template_id,
            base_template_id=origin.base_template_id,
            deployment_id=origin.deployment_id,
            entity_id=origin.entity_id,
        ),
    )


def core_memory_to(memory: CoreMemory) -> blocks_pb2.CoreMemory:
    """The message of a core memory."""
    return blocks_pb2.CoreMemory(
        agent_id=memory.agent_id,
        revision=memory.revision,
        blocks=[block_to(block) for block in memory.blocks],
        update_time=None if memory.updated_at is None else _timestamp(memory.updated_at),
    )


def revision_to(revision: BlockRevision, *, with_diff: bool) -> blocks_pb2.BlockRevision:
    """The message of one change."""
    return blocks_pb2.BlockRevision(
        block_id=revision.block_id,
        revision=revision.revision,
        operation=_OPERATIONS[revision.operation],
        label=revision.label,
        value=revision.value,
        description=revision.description,
        limit=revision.limit,
        read_only=revision.read_only,
        author=author_to(revision.author),
        create_time=_timestamp(revision.created_at),
        diff=_diff(revision) if with_diff else None,
    )


def author_from(message: blocks_pb2.Author) -> Author:
    """Who edits; an owner is always the caller."""
    match message.WhichOneof("author"):
        case "agent":
            agent = message.agent
            return AgentAuthor(
                require_id(agent.agent_id, "agent", "author.agent.agent_id"),
                *(
                    bounded(optional(agent, name), f"author.agent.{name}", _MAX_CALL_ID)
                    for name in ("tool_call_id", "run_id")
                ),
            )
        case "owner":
            return OwnerAuthor(current_principal().subject_id)
        case _:
            raise InvalidArgument("author must say who edits: an agent or the owner.", field="author")


def author_to(author: Author) -> blocks_pb2.Author:
    """The message of an author."""
    match author:
        case AgentAuthor(agent_id, tool_call_id, run_id):
            agent = blocks_pb2.AgentAuthor(agent_id=agent_id, tool_call_id=tool_call_id, run_id=run_id)
            return blocks_pb2.Author(agent=agent)
        case OwnerAuthor(subject_id):
            return blocks_pb2.Author(owner=blocks_pb2.OwnerAuthor(subject_id=subject_id))


def _diff(revision: BlockRevision) -> str:
    before = (revision.previous_value or "").splitlines()
    after = revision.value.splitlines()
    names = (f"revision {revision.revision - 1}", f"revision {revision.revision}")
    return "\n".join(difflib.unified_diff(before, after, *names, lineterm=""))


def optional(message: Any, name: str) -> Any:
    """A field of a message; None where it is not set."""
    return getattr(message, name) if message.HasField(name) else None


def bounded(text: str | None, field: str, most: int) -> str | None:
    """The text as it came. InvalidArgument where it is longer than `most` characters, or has a NUL."""
    if text is not None and len(without_nul(text, field)) > most:
        raise InvalidArgument(f"{field} may have at most {most} characters.", field=field)
    return text


def _timestamp(moment: datetime) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromDatetime(moment)
    return timestamp


def datetime_of(timestamp: Timestamp) -> datetime:
    """The time of a timestamp, in UTC."""
    return timestamp.ToDatetime(tzinfo=UTC)
