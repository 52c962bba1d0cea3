"""Core memories, and the edits that agents make in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.blocks.v1 import blocks_service_pb2 as pb
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import optional_timestamp_to_proto

from mnemesh_blocks.model.core_memory import CoreMemory
from mnemesh_blocks.model.edits import Append, Edit, InsertLine, Patch, ReplaceAll, ReplaceUnique, Rethink
from mnemesh_blocks.rpc.convert.blocks import block_to_proto
from mnemesh_blocks.rpc.convert.fields import optional_field

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
