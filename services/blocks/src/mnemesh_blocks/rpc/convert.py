"""Conversions between the messages of `mnemesh.blocks.v1` and the domain."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.message import Message
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.blocks.v1 import blocks_service_pb2 as pb
from mnemesh.types.v1 import audit_pb2
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import optional_timestamp_to_proto, timestamp_from_proto, timestamp_to_proto

from mnemesh_blocks.model.blocks import (
    DEFAULT_LIMIT,
    AgentAuthor,
    Author,
    Block,
    BlockFilter,
    BlockOrder,
    BlockRevision,
    Operation,
    OwnerAuthor,
    Provenance,
    Redo,
    RevertTarget,
    ToRevision,
    Undo,
    default_description,
)
from mnemesh_blocks.model.core_memory import CoreMemory
from mnemesh_blocks.model.edits import Append, Edit, InsertLine, Patch, ReplaceAll, ReplaceUnique, Rethink


def optional_field(message: Message, name: str) -> Any:
    """Returns the value of a field with presence, or None if it is not set."""
    return getattr(message, name) if message.HasField(name) else None


def author_from_proto(message: blocks_pb2.Author, caller: Principal) -> Author:
    """Returns the author of a change. An owner is always the caller.

    Raises:
        InvalidArgument: The message names no author.
    """
    match message.WhichOneof("author"):
        case "agent":
            agent = message.agent
            return AgentAuthor(agent.agent_id, optional_field(agent, "tool_call_id"), optional_field(agent, "run_id"))
        case "owner":
            return OwnerAuthor(caller.subject_id)
        case _:
            raise InvalidArgument("author must be set to agent or owner.", field="author")


def recorded_author_from_proto(message: blocks_pb2.Author) -> Author:
    """Returns the author of a change that was made elsewhere. Without one, it is an owner without a name."""
    if message.WhichOneof("author") == "agent":
        agent = message.agent
        return AgentAuthor(agent.agent_id, optional_field(agent, "tool_call_id"), optional_field(agent, "run_id"))
    return OwnerAuthor(message.owner.subject_id)


def author_to_proto(author: Author) -> blocks_pb2.Author:
    """Returns the message of an author."""
    match author:
        case AgentAuthor(agent_id, tool_call_id, run_id):
            agent = blocks_pb2.AgentAuthor(agent_id=agent_id, tool_call_id=tool_call_id, run_id=run_id)
            return blocks_pb2.Author(agent=agent)
        case OwnerAuthor(subject_id):
            return blocks_pb2.Author(owner=blocks_pb2.OwnerAuthor(subject_id=subject_id))


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PROVENANCE_IDS: Final = ("project_id", "template_id", "base_template_id", "deployment_id", "entity_id")
_UPDATABLE: Final = frozenset(
    {
        *("label", "value", "limit", "read_only", "tags", "hidden", "is_template", "preserve_on_migration"),
        *("identity_ids", "description", "name", "metadata", "template_name"),
    }
)
_OPTIONAL_FILTERS: Final = (
    *("label", "name", "label_search", "description_search", "value_search", "is_template", "hidden"),
    *("identity_id", "agent_id", "agents_more_than", "agents_fewer_than", "agents_exactly"),
    *("project_id", "template_id"),
)
_ORDERS: Final = {
    pb.BLOCK_ORDER_BY_UNSPECIFIED: BlockOrder.CREATE_TIME,
    pb.BLOCK_ORDER_BY_CREATE_TIME: BlockOrder.CREATE_TIME,
    pb.BLOCK_ORDER_BY_UPDATE_TIME: BlockOrder.UPDATE_TIME,
    pb.BLOCK_ORDER_BY_LABEL: BlockOrder.LABEL,
}


def draft_from_proto(message: blocks_pb2.Block) -> Block:
    """Returns the block that a caller wants to create, without id, times and author."""
    description = optional_field(message, "description")
    return Block(
        id="",
        label=message.label,
        value=message.value,
        limit=message.limit or DEFAULT_LIMIT,
        description=default_description(message.label) if description is None else description,
        read_only=message.read_only,
        name=optional_field(message, "name"),
        tags=tuple(message.tags),
        metadata=optional_field(message, "metadata"),
        hidden=message.hidden,
        is_template=message.is_template,
        template_name=optional_field(message, "template_name"),
        preserve_on_migration=message.preserve_on_migration,
        identity_ids=tuple(message.identity_ids),
        created_at=_EPOCH,
        updated_at=_EPOCH,
        provenance=Provenance(**{name: optional_field(message.provenance, name) for name in _PROVENANCE_IDS}),
    )


def block_from_proto(message: blocks_pb2.Block) -> Block:
    """Returns the block of a message that `block_to_proto` built."""
    origin = message.provenance
    return replace(
        draft_from_proto(message),
        id=message.id,
        description=optional_field(message, "description"),
        limit=message.limit,
        revision=message.revision,
        content_revision=message.content_revision or message.revision,
        created_for_agent_id=optional_field(message, "created_for_agent_id"),
        created_at=timestamp_from_proto(message.create_time, "block.create_time"),
        updated_at=timestamp_from_proto(message.update_time, "block.update_time"),
        provenance=Provenance(
            created_by_id=origin.created_by_id,
            last_updated_by_id=origin.last_updated_by_id,
            **{name: optional_field(origin, name) for name in _PROVENANCE_IDS},
        ),
    )


def block_to_proto(block: Block) -> blocks_pb2.Block:
    """Returns the message of a block."""
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
        created_for_agent_id=block.created_for_agent_id,
        content_revision=block.content_revision,
        create_time=timestamp_to_proto(block.created_at),
        update_time=timestamp_to_proto(block.updated_at),
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


def block_update_from_proto(request: pb.UpdateBlockRequest) -> dict[str, Any]:
    """Returns the new values that the mask of an update names, by the field names of `Block`.

    Raises:
        InvalidArgument: The mask is empty, or names a field that cannot be updated.
    """
    draft = draft_from_proto(request.block)
    changes: dict[str, Any] = {}
    provenance: dict[str, str | None] = {}
    for path in request.update_mask.paths:
        parent, _, child = path.rpartition(".")
        if parent == "provenance" and child in _PROVENANCE_IDS:
            provenance[child] = getattr(draft.provenance, child)
        elif path == "description":
            # The draft has the default description of its label; an update can remove the description.
            changes[path] = optional_field(request.block, path)
        elif path in _UPDATABLE:
            changes[path] = getattr(draft, path)
        else:
            raise InvalidArgument(f"update_mask must not name {path}.", field="update_mask")
    if provenance:
        changes["provenance"] = provenance
    if not changes:
        raise InvalidArgument("update_mask must name at least one field.", field="update_mask")
    return changes


def block_filter_from_proto(message: pb.BlockFilter) -> BlockFilter:
    """Returns the filter of a list or a count."""
    values: dict[str, Any] = {name: optional_field(message, name) for name in _OPTIONAL_FILTERS}
    lists: dict[str, Any] = {name: tuple(getattr(message, name)) for name in ("block_ids", "tags_any", "tags_all")}
    return BlockFilter(**values, **lists)


def block_order_from_proto(value: pb.BlockOrderBy.ValueType) -> BlockOrder:
    """Returns the sort key of a list; the default is the create time.

    Raises:
        InvalidArgument: The value is unknown.
    """
    order = _ORDERS.get(value)
    if order is None:
        raise InvalidArgument("order_by must be a known value of BlockOrderBy.", field="order_by")
    return order


_OPERATIONS: Final = {
    operation: blocks_pb2.BlockOperation.Value(f"BLOCK_OPERATION_{operation.name}") for operation in Operation
}
_FROM_NUMBER: Final = {number: operation for operation, number in _OPERATIONS.items()} | {
    blocks_pb2.BLOCK_OPERATION_UNSPECIFIED: Operation.UPDATE
}


def revision_to_proto(revision: BlockRevision, *, with_diff: bool) -> blocks_pb2.BlockRevision:
    """Returns the message of a revision. A diff needs `previous_value`."""
    return blocks_pb2.BlockRevision(
        block_id=revision.block_id,
        revision=revision.revision,
        operation=_OPERATIONS[revision.operation],
        label=revision.label,
        value=revision.value,
        description=revision.description,
        limit=revision.limit,
        read_only=revision.read_only,
        author=author_to_proto(revision.author),
        create_time=timestamp_to_proto(revision.created_at),
        diff=_diff(revision) if with_diff else None,
        parent_revision=revision.parent,
    )


def revision_from_proto(message: blocks_pb2.BlockRevision, field: str) -> BlockRevision:
    """Returns the revision of a message that `revision_to_proto` built.

    Raises:
        InvalidArgument: The operation is unknown, or the time is out of range. Metadata: field.
    """
    operation = _FROM_NUMBER.get(message.operation)
    if operation is None:
        raise InvalidArgument(f"{field}.operation must be a known operation.", field=f"{field}.operation")
    return BlockRevision(
        block_id=message.block_id,
        revision=message.revision,
        operation=operation,
        label=message.label,
        value=message.value,
        description=optional_field(message, "description"),
        limit=message.limit,
        read_only=message.read_only,
        author=recorded_author_from_proto(message.author),
        created_at=timestamp_from_proto(message.create_time, f"{field}.create_time"),
        parent=message.parent_revision if message.HasField("parent_revision") else None,
    )


def revert_target_from_proto(request: pb.RevertBlockRequest) -> RevertTarget:
    """Returns the target of a revert.

    Raises:
        InvalidArgument: The request has no target.
    """
    match request.WhichOneof("target"):
        case "revision":
            return ToRevision(request.revision)
        case "undo":
            return Undo()
        case "redo":
            return Redo()
        case _:
            raise InvalidArgument("target must be set to revision, undo or redo.", field="target")


def _diff(revision: BlockRevision) -> str:
    before = (revision.previous_value or "").splitlines()
    after = revision.value.splitlines()
    names = (f"revision {revision.revision - 1}", f"revision {revision.revision}")
    return "\n".join(difflib.unified_diff(before, after, *names, lineterm=""))


_EDITS: Final[dict[str, Callable[[pb.EditBlockRequest], Edit]]] = {
    "append": lambda r: Append(r.append.text),
    "replace_all": lambda r: ReplaceAll(r.replace_all.old_text, r.replace_all.new_text),
    "replace_unique": lambda r: ReplaceUnique(r.replace_unique.old_text, r.replace_unique.new_text),
    "insert_line": lambda r: InsertLine(
        r.insert_line.line, r.insert_line.text, optional_field(r.insert_line, "base_revision")
    ),
    "rethink": lambda r: Rethink(r.rethink.value, optional_field(r.rethink, "base_revision")),
    "patch": lambda r: Patch(r.patch.patch),
}


def core_memory_to_proto(memory: CoreMemory) -> blocks_pb2.CoreMemory:
    """Returns the message of a core memory."""
    return blocks_pb2.CoreMemory(
        agent_id=memory.agent_id,
        revision=memory.revision,
        blocks=[block_to_proto(block) for block in memory.blocks],
        update_time=optional_timestamp_to_proto(memory.updated_at),
    )


def edit_from_proto(request: pb.EditBlockRequest) -> Edit:
    """Returns the edit of a request.

    Raises:
        InvalidArgument: The request has no edit.
    """
    kind = request.WhichOneof("edit")
    if kind is None:
        raise InvalidArgument("edit is required.", field="edit")
    return _EDITS[kind](request)
