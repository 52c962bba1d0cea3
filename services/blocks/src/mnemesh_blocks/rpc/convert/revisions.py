"""Revisions of blocks, and the targets of reverts."""

from __future__ import annotations

import difflib
from typing import Final

from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.blocks.v1 import blocks_service_pb2 as pb
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import timestamp_from_proto, timestamp_to_proto

from mnemesh_blocks.model.revisions import BlockRevision, Operation, Redo, RevertTarget, ToRevision, Undo
from mnemesh_blocks.rpc.convert.authors import author_to_proto, recorded_author_from_proto
from mnemesh_blocks.rpc.convert.fields import optional_field

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
