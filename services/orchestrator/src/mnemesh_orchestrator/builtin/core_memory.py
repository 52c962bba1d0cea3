"""The tools that edit core memory. Each makes one edit of one block; the blocks service checks the rules of blocks."""

import dataclasses
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
from mnemesh_orchestrator.prompt.closing_tags import restored

END_OF_BLOCK = -1
_BLOCK_CHANGED = (
    "Nothing was edited: another author changed the memory block with label `{label}` after it was shown to you. It "
    "now reads:\n\n{value}\n\nRepeat the edit on this text if you still want it."
)


async def append(blocks: CoreMemoryPort, call: BuiltinCall, arguments: Mapping[str, Any]) -> None:
    """Runs core_memory_append."""
    await _edit(blocks, call, arguments["label"], Append(arguments["content"]))


async def replace_all(blocks: CoreMemoryPort, call: BuiltinCall, arguments: Mapping[str, Any]) -> None:
    """Runs core_memory_replace."""
    await _edit(blocks, call, arguments["label"], ReplaceAll(arguments["old_content"], arguments["new_content"]))


async def replace(blocks: CoreMemoryPort, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs memory_replace."""
    return await apply_edit(blocks, call, arguments["label"], ReplaceUnique(arguments["old_str"], arguments["new_str"]))


async def insert(blocks: CoreMemoryPort, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs memory_insert."""
    label = arguments["label"]
    return await apply_edit(blocks, call, label, insert_edit(call, label, arguments["new_str"], arguments))


async def rethink(blocks: CoreMemoryPort, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs memory_rethink."""
    label = arguments["label"]
    return await apply_edit(blocks, call, label, Rethink(arguments["new_memory"], call.base_revision(label)))


async def rethink_target(blocks: CoreMemoryPort, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs rethink_memory, the earlier form of memory_rethink."""
    label = arguments["target_block_label"]
    return await apply_edit(blocks, call, label, Rethink(arguments["new_memory"], call.base_revision(label)))


async def apply_patch(blocks: CoreMemoryPort, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs memory_apply_patch."""
    return await apply_edit(blocks, call, arguments["label"], Patch(arguments["patch"]))


def insert_edit(call: BuiltinCall, label: str, text: str, arguments: Mapping[str, Any]) -> InsertLine:
    """Returns an edit that inserts text after a line that the agent has seen, or appends it if no line is given."""
    line = arguments.get("insert_line", END_OF_BLOCK)
    return InsertLine(line, text, None if line == END_OF_BLOCK else call.base_revision(label))


async def apply_edit(blocks: CoreMemoryPort, call: BuiltinCall, label: str, edit: BlockEdit) -> str:
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
        raise Refused(_BLOCK_CHANGED.format(label=label, value=now.value if now is not None else "")) from error
    return (
        f"The core memory block with label `{label}` has been edited. Review the changes and make sure they are as "
        "expected (correct indentation, no duplicate lines, etc). Edit the memory block again if necessary."
    )


async def core_memory(blocks: CoreMemoryPort, call: BuiltinCall) -> CoreMemory:
    """Returns the blocks of the calling agent, with the isolated blocks of its conversation."""
    return await blocks.get(call.agent_id, None, call.holder_id) or CoreMemory(call.agent_id, 0)


async def _edit(blocks: CoreMemoryPort, call: BuiltinCall, label: str, edit: BlockEdit) -> None:
    block = await blocks.edit(call.effect(0), call.author, label, _as_stored(edit, label))
    call.record_edit(label, block.revision)


def _as_stored(edit: BlockEdit, label: str) -> BlockEdit:
    """Returns an edit with its texts as the block stores them. The model writes them as it saw the value."""
    texts: Any = {
        item.name: restored(value, label)
        for item in dataclasses.fields(edit)
        if isinstance(value := getattr(edit, item.name), str)
    }
    return dataclasses.replace(edit, **texts)
