"""The tools that edit core memory: each one edit of one block. The rules of blocks are kept by their own service."""

from collections.abc import Mapping
from typing import Any

from engram_orchestrator.builtin.call import BuiltinCall
from engram_orchestrator.ports import (
    Append,
    BlockEdit,
    CoreMemoryPort,
    InsertLine,
    Patch,
    ReplaceAll,
    ReplaceUnique,
    Rethink,
)

END_OF_BLOCK = -1


async def append(blocks: CoreMemoryPort, call: BuiltinCall, given: Mapping[str, Any]) -> None:
    """core_memory_append."""
    await blocks.edit(call.effect(0), call.author, given["label"], Append(given["content"]))


async def replace_all(blocks: CoreMemoryPort, call: BuiltinCall, given: Mapping[str, Any]) -> None:
    """core_memory_replace."""
    edit = ReplaceAll(given["old_content"], given["new_content"])
    await blocks.edit(call.effect(0), call.author, given["label"], edit)


async def replace(blocks: CoreMemoryPort, call: BuiltinCall, given: Mapping[str, Any]) -> str:
    """memory_replace."""
    return await edited(blocks, call, given["label"], ReplaceUnique(given["old_str"], given["new_str"]))


async def insert(blocks: CoreMemoryPort, call: BuiltinCall, given: Mapping[str, Any]) -> str:
    """memory_insert."""
    edit = InsertLine(given.get("insert_line", END_OF_BLOCK), given["new_str"])
    return await edited(blocks, call, given["label"], edit)


async def rethink(blocks: CoreMemoryPort, call: BuiltinCall, given: Mapping[str, Any]) -> str:
    """memory_rethink."""
    return await edited(blocks, call, given["label"], Rethink(given["new_memory"]))


async def apply_patch(blocks: CoreMemoryPort, call: BuiltinCall, given: Mapping[str, Any]) -> str:
    """memory_apply_patch."""
    return await edited(blocks, call, given["label"], Patch(given["patch"]))


async def edited(blocks: CoreMemoryPort, call: BuiltinCall, label: str, edit: BlockEdit) -> str:
    """Makes the edit, as the call's first effect, and says so."""
    await blocks.edit(call.effect(0), call.author, label, edit)
    return (
        f"The core memory block with label `{label}` has been edited. Review the changes and make sure they are as "
        "expected (correct indentation, no duplicate lines, etc). Edit the memory block again if necessary."
    )
