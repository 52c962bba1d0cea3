"""Contracts to domain values and back."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from engram.blocks.v1 import blocks_pb2
from engram.blocks.v1 import blocks_service_pb2 as rpc
from engram.types.v1 import audit_pb2
from engram_kit.errors import InvalidArgument
from engram_kit.ids import require_id
from engram_kit.principal import current_principal
from google.protobuf.timestamp_pb2 import Timestamp

from engram_blocks.edits import Append, Edit, InsertLine, Patch, ReplaceAll, ReplaceUnique, Rethink
from engram_blocks.history import Redo, RevertTarget, ToRevision, Undo
from engram_blocks.model import (
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
from engram_blocks.rules import default_description, without_nul
from engram_blocks.store.base import BlockFilter, BlockOrder

_MOST_LABELS: Final = 1000
_MAX_CALL_ID: Final = 1000
_MAX_SEARCH: Final = 10_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PLAIN_OPTIONALS: Final = ("description", "name", "metadata", "template_name")
_CARRIED: Final = ("project_id", "template_id", "base_template_id", "deployment_id", "entity_id")
_MASK: Final = frozenset(
    {
        *("label", "value", "limit", "read_only", "tags", "hidden", "is_template"),
        *("preserve_on_migration", "identity_ids"),
        *_PLAIN_OPTIONALS,
    }
)


def labels_from(given: Sequence[str]) -> list[str]:
    """The labels of blocks that a caller names.

    Raises:
        InvalidArgument: there is none, or too many, or a NUL character in one.
    """
    if not given:
        raise InvalidArgument("labels must name one label at least.", field="labels")
    if len(given) > _MOST_LABELS:
        raise InvalidArgument(f"At most {_MOST_LABELS} labels at once.", field="labels")
    return [without_nul(label, "labels") for label in given]


def draft_from(message: blocks_pb2.Block) -> Block:
    """The block that a caller wants made; its id, revision, times and authorship are yet to be given."""
    description = _optional(message, "description")
    return Block(
        id="",
        label=message.label,
        value=message.value,
        limit=message.limit or DEFAULT_LIMIT,
        description=default_description(message.label) if description is None else description,
        read_only=message.read_only,
        name=_optional(message, "name"),
        tags=tuple(message.tags),
        metadata=_optional(message, "metadata"),
        hidden=message.hidden,
        is_template=message.is_template,
        template_name=_optional(message, "template_name"),
        preserve_on_migration=message.preserve_on_migration,
        identity_ids=tuple(message.identity_ids),
        created_at=_EPOCH,
        updated_at=_EPOCH,
        provenance=Provenance(**{name: _optional(message.provenance, name) for name in _CARRIED}),
    )


def block_from(message: blocks_pb2.Block) -> Block:
    """The block in a message that this service made; the inverse of `block_to`, for tests and clients in Python."""
    origin = message.provenance
    return replace(
        draft_from(message),
        id=message.id,
        description=_optional(message, "description"),
        limit=message.limit,
        revision=message.revision,
        content_revision=message.revision,
        created_at=_datetime(message.create_time),
        updated_at=_datetime(message.update_time),
        provenance=Provenance(
            created_by_id=origin.created_by_id,
            last_updated_by_id=origin.last_updated_by_id,
            **{name: _optional(origin, name) for name in _CARRIED},
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


def changes_from(request: rpc.UpdateBlockRequest) -> dict[str, Any]:
    """The new values that an update's mask names, by the field names of `Block`."""
    draft = draft_from(request.block)
    changes: dict[str, Any] = {}
    carried: dict[str, str | None] = {}
    for path in request.update_mask.paths:
        parent, _, child = path.rpartition(".")
        if parent == "provenance" and child in _CARRIED:
            carried[child] = getattr(draft.provenance, child)
        elif path == "description":
            changes[path] = _optional(request.block, path)
        elif path in _MASK:
            changes[path] = getattr(draft, path)
        else:
            raise InvalidArgument(f"{path} is not a field of a block that can be updated.", field="update_mask")
    if not changes and not carried:
        raise InvalidArgument("update_mask must name the fields to change.", field="update_mask")
    if carried:
        changes["carried"] = carried
    return changes


def filter_from(message: rpc.BlockFilter) -> BlockFilter:
    """The filter of a list or a count."""
    optionals = {
        name: _optional(message, name)
        for name in (
            *("label", "name", "label_search", "description_search", "value_search", "is_template", "hidden"),
            *("identity_id", "agent_id", "agents_more_than", "agents_fewer_than", "agents_exactly"),
            *("project_id", "template_id"),
        )
    }
    lists: dict[str, Any] = {name: tuple(getattr(message, name)) for name in ("block_ids", "tags_any", "tags_all")}
    for name, value in (*optionals.items(), *lists.items()):
        for text in (value,) if isinstance(value, str) else value if isinstance(value, tuple) else ():
            _bounded(text, f"filter.{name}", _MAX_SEARCH)
    return BlockFilter(**lists, **optionals)


def order_from(value: rpc.BlockOrderBy.ValueType) -> BlockOrder:
    """What to sort a list by; by creation where nothing is said."""
    match value:
        case rpc.BLOCK_ORDER_BY_UNSPECIFIED | rpc.BLOCK_ORDER_BY_CREATE_TIME:
            return BlockOrder.CREATE_TIME
        case rpc.BLOCK_ORDER_BY_UPDATE_TIME:
            return BlockOrder.UPDATE_TIME
        case rpc.BLOCK_ORDER_BY_LABEL:
            return BlockOrder.LABEL
        case _:
            raise InvalidArgument("order_by is not a known field.", field="order_by")


def edit_from(request: rpc.EditBlockRequest) -> Edit:
    """The edit that is asked for."""
    kind = request.WhichOneof("edit")
    if kind is None:
        raise InvalidArgument("An edit is required.", field="edit")
    return _EDITS[kind](request)


def _bounded(text: str | None, field: str, most: int) -> str | None:
    if text is not None and len(without_nul(text, field)) > most:
        raise InvalidArgument(f"{field} may have at most {most} characters.", field=field)
    return text


def author_from(message: blocks_pb2.Author) -> Author:
    """Who edits; an owner is always the caller."""
    match message.WhichOneof("author"):
        case "agent":
            agent = message.agent
            return AgentAuthor(
                require_id(agent.agent_id, "agent", "author.agent.agent_id"),
                *(
                    _bounded(_optional(agent, name), f"author.agent.{name}", _MAX_CALL_ID)
                    for name in ("tool_call_id", "run_id")
                ),
            )
        case "owner":
            return OwnerAuthor(current_principal().subject_id)
        case _:
            raise InvalidArgument("author must say who edits: an agent or the owner.", field="author")


def target_from(request: rpc.RevertBlockRequest) -> RevertTarget:
    """Where a revert goes to."""
    match request.WhichOneof("target"):
        case "revision":
            return ToRevision(request.revision)
        case "undo":
            return Undo()
        case "redo":
            return Redo()
        case _:
            raise InvalidArgument("A target is required: a revision, undo or redo.", field="target")


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


def author_to(author: Author) -> blocks_pb2.Author:
    """The message of an author."""
    match author:
        case AgentAuthor(agent_id, tool_call_id, run_id):
            agent = blocks_pb2.AgentAuthor(agent_id=agent_id, tool_call_id=tool_call_id, run_id=run_id)
            return blocks_pb2.Author(agent=agent)
        case OwnerAuthor(subject_id):
            return blocks_pb2.Author(owner=blocks_pb2.OwnerAuthor(subject_id=subject_id))


_EDITS: Final[dict[str, Callable[[rpc.EditBlockRequest], Edit]]] = {
    "append": lambda r: Append(r.append.text),
    "replace_all": lambda r: ReplaceAll(r.replace_all.old_text, r.replace_all.new_text),
    "replace_unique": lambda r: ReplaceUnique(r.replace_unique.old_text, r.replace_unique.new_text),
    "insert_line": lambda r: InsertLine(
        r.insert_line.line, r.insert_line.text, _optional(r.insert_line, "base_revision")
    ),
    "rethink": lambda r: Rethink(r.rethink.value, _optional(r.rethink, "base_revision")),
    "patch": lambda r: Patch(r.patch.patch),
}

_OPERATIONS: Final = {
    operation: blocks_pb2.BlockOperation.Value(f"BLOCK_OPERATION_{operation.name}") for operation in Operation
}


def _diff(revision: BlockRevision) -> str:
    before = (revision.previous_value or "").splitlines()
    after = revision.value.splitlines()
    names = (f"revision {revision.revision - 1}", f"revision {revision.revision}")
    return "\n".join(difflib.unified_diff(before, after, *names, lineterm=""))


def _optional(message: Any, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


def _timestamp(moment: datetime) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromDatetime(moment)
    return timestamp


def moment_from(message: Any, field: str) -> datetime | None:
    """An optional time of a request.

    Raises:
        InvalidArgument: it is none that the calendar has.
    """
    if not message.HasField(field):
        return None
    try:
        return _datetime(getattr(message, field))
    except (ValueError, OverflowError):
        raise InvalidArgument(f"{field} is no valid time.", field=field) from None


def _datetime(timestamp: Timestamp) -> datetime:
    return timestamp.ToDatetime(tzinfo=UTC)
