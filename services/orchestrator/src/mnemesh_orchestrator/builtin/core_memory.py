"""The tools that edit core memory. Each makes one edit of one block; the blocks service checks the rules of blocks."""

from collections.abc import Mapping
from typing import Any

from mnemesh_kit.errors import Aborted

from mnemesh_orchestrator.builtin.call import BuiltinCall, Refused
from mnemesh_orchestrator.model.core_memory import (
    Append,
    BlockEdit,
    CoreMemory,
    InsertLine,
    Patch,
    ReplaceAll,
    ReplaceUnique,
    Rethink,
)
from mnemesh_orchestrator.ports.blocks import CoreMemoryPort

END_OF_BLOCK = -1
_MOVED_ON = (
    "Nothing was edited: another author changed the memory block with label `{label}` after it was shown to you. It "
    "now reads:\n\n{value}\n\nRepeat the edit on this text if you still want it."
)


async def append(blocks: CoreMemoryPort, call: BuiltinCall, given: Mapping[str, Any]) -> None:
    """Runs core_memory_append."""
    await _edit(blocks, call, given["label"], Append(given["content"]))


async def replace_all(blocks: CoreMemoryPort, call: BuiltinCall, given: Mapping[str, Any]) -> None:
    """Runs core_memory_replace."""
    await _edit(blocks, call, given["label"], ReplaceAll(given["old_content"], given["new_content"]))


async def replace(blocks: CoreMemoryPort, call: BuiltinCall, given: Mapping[str, Any]) -> str:
    """Runs memory_replace."""
    return await edited(blocks, call, given["label"], ReplaceUnique(given["old_str"], given["new_str"]))


async def insert(blocks: CoreMemoryPort, call: BuiltinCall, given: Mapping[str, Any]) -> str:
    """Runs memory_insert."""
    label = given["label"]
    return await edited(blocks, call, label, insertion(call, label, given["new_str"], given))


async def rethink(blocks: CoreMemoryPort, call: BuiltinCall, given: Mapping[str, Any]) -> str:
    """Runs memory_rethink."""
    label = given["label"]
    return await edited(blocks, call, label, Rethink(given["new_memory"], call.base_revision(label)))


async def apply_patch(blocks: CoreMemoryPort, call: BuiltinCall, given: Mapping[str, Any]) -> str:
    """Runs memory_apply_patch."""
    return await edited(blocks, call, given["label"], Patch(given["patch"]))


def insertion(call: BuiltinCall, label: str, text: str, given: Mapping[str, Any]) -> InsertLine:
    """Returns an edit that inserts text after a line that the agent has seen, or appends it if no line is given."""
    line = given.get("insert_line", END_OF_BLOCK)
    return InsertLine(line, text, None if line == END_OF_BLOCK else call.base_revision(label))


async def edited(blocks: CoreMemoryPort, call: BuiltinCall, label: str, edit: BlockEdit) -> str:
    """Makes the edit as the first effect of the call and returns the text for the model.

    Raises:
        Refused: the edit depends on the value of the block, and another author changed it since the agent saw it.
    """
    try:
        await _edit(blocks, call, label, edit)
    except Aborted as error:
        if error.reason != "BLOCK_REVISION_MISMATCH":
            raise
        # The error carries as much of the value as fits into trailers.
        now = (await core_memory(blocks, call)).block(label)
        raise Refused(_MOVED_ON.format(label=label, value=now.value if now is not None else "")) from error
    return (
        f"The core memory block with label `{label}` has been edited. Review the changes and make sure they are as "
        "expected (correct indentation, no duplicate lines, etc). Edit the memory block again if necessary."
    )


async def core_memory(blocks: CoreMemoryPort, call: BuiltinCall) -> CoreMemory:
    """Returns the blocks of the calling agent, with the isolated blocks of its conversation."""
    return await blocks.get(call.agent_id, None, call.holder_id) or CoreMemory(call.agent_id, 0)


async def _edit(blocks: CoreMemoryPort, call: BuiltinCall, label: str, edit: BlockEdit) -> None:
    block = await blocks.edit(call.effect(0), call.author, label, edit)
    call.has_edited(label, block.revision)
