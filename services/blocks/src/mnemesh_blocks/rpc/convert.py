"""The requests of `mnemesh.blocks.v1`: what a caller may set, and what its values mean."""

from dataclasses import replace
from typing import Any, Final

from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.blocks.v1 import blocks_service_pb2 as pb
from mnemesh_kit.access import refuse_limited
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_types.blocks import AUTHOR, Author, Block, OwnerAuthor
from mnemesh_types.twin import Conversion, enum_of

from mnemesh_blocks.model.blocks import (
    DEFAULT_LIMIT,
    BlockOrder,
    Redo,
    RevertTarget,
    ToRevision,
    Undo,
    default_description,
)
from mnemesh_blocks.model.edits import Append, Edit, InsertLine, Patch, ReplaceAll, ReplaceUnique, Rethink

_PROVENANCE_IDS: Final = ("project_id", "template_id", "base_template_id", "deployment_id", "entity_id")
_UPDATABLE: Final = frozenset(
    {
        *("label", "value", "limit", "read_only", "tags", "hidden", "is_template", "preserve_on_migration"),
        *("identity_ids", "description", "name", "metadata", "template_name"),
        *(f"provenance.{name}" for name in _PROVENANCE_IDS),
    }
)
enum_of(pb.BlockOrderBy, BlockOrder, "CREATE_TIME")
_BLOCK: Final = Conversion(blocks_pb2.Block, Block)
_EDITS: Final[dict[str, Any]] = {
    "append": Append,
    "replace_all": ReplaceAll,
    "replace_unique": ReplaceUnique,
    "insert_line": InsertLine,
    "rethink": Rethink,
    "patch": Patch,
}


def author_from_proto(message: blocks_pb2.Author, caller: Principal) -> Author:
    """Returns the author of a change. An owner is always the caller.

    Raises:
        InvalidArgument: The message names no author.
    """
    author = AUTHOR.from_proto(message)
    if author is None:
        raise InvalidArgument("author must be set to agent or owner.", field="author")
    return OwnerAuthor(caller.subject_id) if isinstance(author, OwnerAuthor) else author


def draft_from_proto(message: blocks_pb2.Block, field: str, created_for_agent_id: str | None) -> Block:
    """Returns the block that a caller wants to create. Its id, times and author are not used."""
    block = Block.from_proto(message, field)
    refuse_limited(block.identity_ids, f"{field}.identity_ids")
    return replace(
        block,
        limit=block.limit or DEFAULT_LIMIT,
        description=default_description(block.label) if block.description is None else block.description,
        revision=1,
        content_revision=1,
        created_for_agent_id=created_for_agent_id,
    )


def exported_block_from_proto(message: blocks_pb2.Block, field: str) -> Block:
    block = Block.from_proto(message, field)
    return replace(block, content_revision=block.content_revision or block.revision)


def block_update_from_proto(request: pb.UpdateBlockRequest) -> dict[str, Any]:
    """Returns the new values that the mask of an update names, by the field names of `Block`.

    Raises:
        InvalidArgument: The mask is empty, or names a field that cannot be updated.
    """
    changes = _BLOCK.changes(request.block, request.update_mask, _UPDATABLE, "block")
    refuse_limited(changes.get("identity_ids"), "block.identity_ids")
    return changes | ({"limit": changes["limit"] or DEFAULT_LIMIT} if "limit" in changes else {})


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


def edit_from_proto(request: pb.EditBlockRequest) -> Edit:
    """Returns the edit of a request.

    Raises:
        InvalidArgument: The request has no edit.
    """
    kind = request.WhichOneof("edit")
    if kind is None:
        raise InvalidArgument("edit is required.", field="edit")
    edit: Edit = _EDITS[kind].from_proto(getattr(request, kind))
    return edit
