"""Requests: what a caller wants listed, changed or reverted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument

from mnemesh_blocks.model.edits import Append, Edit, InsertLine, Patch, ReplaceAll, ReplaceUnique, Rethink
from mnemesh_blocks.model.validation import without_nul
from mnemesh_blocks.rpc.convert.blocks import CARRIED, bounded, datetime_of, draft_from, optional
from mnemesh_blocks.store.base import BlockFilter, BlockOrder
from mnemesh_blocks.usecases.reverts import Redo, RevertTarget, ToRevision, Undo

_MOST_LABELS: Final = 1000
_MAX_SEARCH: Final = 10_000
_PLAIN_OPTIONALS: Final = ("description", "name", "metadata", "template_name")
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


def changes_from(request: rpc.UpdateBlockRequest) -> dict[str, Any]:
    """The new values that an update's mask names, by the field names of `Block`."""
    draft = draft_from(request.block)
    changes: dict[str, Any] = {}
    carried: dict[str, str | None] = {}
    for path in request.update_mask.paths:
        parent, _, child = path.rpartition(".")
        if parent == "provenance" and child in CARRIED:
            carried[child] = getattr(draft.provenance, child)
        elif path == "description":
            changes[path] = optional(request.block, path)
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
        name: optional(message, name)
        for name in (
            *("label", "name", "label_search", "description_search", "value_search", "is_template", "hidden"),
            *("identity_id", "agent_id", "agents_more_than", "agents_fewer_than", "agents_exactly"),
            *("project_id", "template_id"),
        )
    }
    lists: dict[str, Any] = {name: tuple(getattr(message, name)) for name in ("block_ids", "tags_any", "tags_all")}
    for name, value in (*optionals.items(), *lists.items()):
        for text in (value,) if isinstance(value, str) else value if isinstance(value, tuple) else ():
            bounded(text, f"filter.{name}", _MAX_SEARCH)
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


def moment_from(message: Any, field: str) -> datetime | None:
    """An optional time of a request.

    Raises:
        InvalidArgument: it is none that the calendar has.
    """
    if not message.HasField(field):
        return None
    try:
        return datetime_of(getattr(message, field))
    except (ValueError, OverflowError):
        raise InvalidArgument(f"{field} is no valid time.", field=field) from None


_EDITS: Final[dict[str, Callable[[rpc.EditBlockRequest], Edit]]] = {
    "append": lambda r: Append(r.append.text),
    "replace_all": lambda r: ReplaceAll(r.replace_all.old_text, r.replace_all.new_text),
    "replace_unique": lambda r: ReplaceUnique(r.replace_unique.old_text, r.replace_unique.new_text),
    "insert_line": lambda r: InsertLine(
        r.insert_line.line, r.insert_line.text, optional(r.insert_line, "base_revision")
    ),
    "rethink": lambda r: Rethink(r.rethink.value, optional(r.rethink, "base_revision")),
    "patch": lambda r: Patch(r.patch.patch),
}
