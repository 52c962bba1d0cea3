"""Revisions of blocks, and the targets of reverts."""

from __future__ import annotations

import difflib
from typing import Final

from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.blocks.v1 import blocks_service_pb2 as pb
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import timestamp_to_proto

from mnemesh_blocks.model.revisions import BlockRevision, Operation, Redo, RevertTarget, ToRevision, Undo
from mnemesh_blocks.rpc.convert.authors import author_to_proto

_OPERATIONS: Final = {
    operation: blocks_pb2.BlockOperation.Value(f"BLOCK_OPERATION_{operation.name}") for operation in Operation
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
