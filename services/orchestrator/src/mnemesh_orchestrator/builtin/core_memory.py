"""The tools that edit core memory. Each makes one edit of one block; the blocks service checks the rules of blocks."""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from mnemesh_kit.errors import Aborted
from mnemesh_types.blocks import (
    AppendEdit,
    Block,
    InsertLineEdit,
    PatchEdit,
    ReplaceAllEdit,
    ReplaceUniqueEdit,
    RethinkEdit,
)

from mnemesh_orchestrator.builtin.call import BuiltinCall, Refused
from mnemesh_orchestrator.clients.blocks import BlocksClient
from mnemesh_orchestrator.model.core_memory import BlockEdit, CoreMemory
from mnemesh_orchestrator.prompt.assembly import restored

END_OF_BLOCK = -1
_BLOCK_CHANGED = (
    "Nothing was edited: another author changed the memory block with label `{label}` after it was shown to you. It "
    "now reads:\n\n{value}\n\nRepeat the edit on this text if you still want it."
)

READ_ONLY_TEXT: Final = "Error This block is read-only and cannot be edited."
_ISOLATED: Final = "Memory block '{label}' belongs to this conversation and can be edited, but not renamed or deleted."
_ROOT: Final = "/memories/"


async def append(blocks: BlocksClient, call: BuiltinCall, arguments: Mapping[str, Any]) -> None:
    """Runs core_memory_append."""
    await _edit(blocks, call, arguments["label"], AppendEdit(arguments["content"]))


async def replace_all(blocks: BlocksClient, call: BuiltinCall, arguments: Mapping[str, Any]) -> None:
    """Runs core_memory_replace."""
    await _edit(blocks, call, arguments["label"], ReplaceAllEdit(arguments["old_content"], arguments["new_content"]))


async def replace(blocks: BlocksClient, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs memory_replace."""
    return await apply_edit(
        blocks, call, arguments["label"], ReplaceUniqueEdit(arguments["old_str"], arguments["new_str"])
    )


async def insert(blocks: BlocksClient, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs memory_insert."""
    label = arguments["label"]
    return await apply_edit(blocks, call, label, insert_edit(call, label, arguments["new_str"], arguments))


async def rethink(blocks: BlocksClient, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs memory_rethink."""
    label = arguments["label"]
    return await apply_edit(blocks, call, label, RethinkEdit(arguments["new_memory"], call.base_revision(label)))


async def rethink_target(blocks: BlocksClient, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs rethink_memory, the earlier form of memory_rethink."""
    label = arguments["target_block_label"]
    return await apply_edit(blocks, call, label, RethinkEdit(arguments["new_memory"], call.base_revision(label)))


async def apply_patch(blocks: BlocksClient, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs memory_apply_patch."""
    return await apply_edit(blocks, call, arguments["label"], PatchEdit(arguments["patch"]))


def insert_edit(call: BuiltinCall, label: str, text: str, arguments: Mapping[str, Any]) -> InsertLineEdit:
    """Returns an edit that inserts text after a line that the agent has seen, or appends it if no line is given."""
    line = arguments.get("insert_line", END_OF_BLOCK)
    return InsertLineEdit(line, text, None if line == END_OF_BLOCK else call.base_revision(label))


async def apply_edit(blocks: BlocksClient, call: BuiltinCall, label: str, edit: BlockEdit) -> str:
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


async def core_memory(blocks: BlocksClient, call: BuiltinCall) -> CoreMemory:
    """Returns the blocks of the calling agent, with the isolated blocks of its conversation."""
    return await blocks.get(call.agent_id, None, call.holder_id) or CoreMemory(call.agent_id, 0)


async def _edit(blocks: BlocksClient, call: BuiltinCall, label: str, edit: BlockEdit) -> None:
    edited = await blocks.edit(call.effect(0), call.author, label, _as_stored(edit, label))
    if call.seen_revisions is not None:
        call.seen_revisions.record_block(edited)


def _as_stored(edit: BlockEdit, label: str) -> BlockEdit:
    """Returns an edit with its texts as the block stores them. The model writes them as it saw the value."""
    texts: Any = {
        item.name: restored(value, label)
        for item in dataclasses.fields(edit)
        if isinstance(value := getattr(edit, item.name), str)
    }
    return dataclasses.replace(edit, **texts)


async def run_command(blocks: BlocksClient, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs a command. Raises Refused if an argument of the command is missing."""
    return await _COMMANDS[arguments["command"]](blocks, call, arguments)


async def _create(blocks: BlocksClient, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    label, description = _label(arguments, "path"), _required(arguments, "description")
    # Texts that the model copied from another block have the form in which it saw them.
    block = Block(
        label=label, value=restored(arguments.get("file_text", ""), label), description=restored(description, label)
    )
    created = await blocks.create(call.effect(0), call.agent_id, block)
    call.record_edit(label, created.revision)
    return f"Successfully created memory block '{label}'"


async def _str_replace(blocks: BlocksClient, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    edit = ReplaceUniqueEdit(_required(arguments, "old_str"), _required(arguments, "new_str"))
    return await apply_edit(blocks, call, _label(arguments, "path"), edit)


async def _insert(blocks: BlocksClient, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    text, label = _required(arguments, "insert_text"), _label(arguments, "path")
    return await apply_edit(blocks, call, label, insert_edit(call, label, text, arguments))


async def _delete(blocks: BlocksClient, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    label = _require_shared(call, _label(arguments, "path"))
    block = (await core_memory(blocks, call)).block(label)
    if block is not None and block.read_only:
        raise Refused(READ_ONLY_TEXT)
    # Also if the agent holds no such block: after a crash the call may repeat one that removed it, and only the service
    # knows.
    await blocks.detach(call.effect(0), call.agent_id, label)
    if call.seen_revisions is not None:
        call.seen_revisions.remove(label)
    return f"Successfully deleted memory block '{label}'"


async def _rename(blocks: BlocksClient, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    if "path" in arguments and "old_path" not in arguments:
        label, description = _label(arguments, "path"), _required(arguments, "description")
        block = _require_editable(await core_memory(blocks, call), label)
        updated = await blocks.describe(call.effect(0), block.id, restored(description, label))
        call.record_edit(label, updated.revision)
        return f"Successfully updated description of memory block '{label}'"
    old_label, new_label = (
        _require_shared(call, _label(arguments, "old_path")),
        _require_shared(call, _label(arguments, "new_path")),
    )
    memory = await core_memory(blocks, call)
    if memory.block(old_label) is None and memory.block(new_label) is not None:
        # A repeat finds this if its first attempt succeeded and its answer was lost.
        return f"Memory block '{new_label}' exists, and no memory block is called '{old_label}'"
    renamed = await blocks.relabel(call.effect(0), _require_editable(memory, old_label).id, new_label)
    call.record_edit(new_label, renamed.revision, before=old_label)
    return f"Successfully renamed memory block '{old_label}' to '{new_label}'"


_COMMANDS: Final[Mapping[str, Callable[[BlocksClient, BuiltinCall, Mapping[str, Any]], Awaitable[str]]]] = {
    "create": _create,
    "str_replace": _str_replace,
    "insert": _insert,
    "delete": _delete,
    "rename": _rename,
}


def _required(arguments: Mapping[str, Any], name: str) -> str:
    if name not in arguments:
        raise Refused(f"Error: {name} is required for {arguments['command']} command")
    return str(arguments[name])


def _label(arguments: Mapping[str, Any], name: str) -> str:
    """Returns the label that a path names: the part below /memories/, with folders joined by underscores."""
    label = _required(arguments, name).removeprefix(_ROOT).removeprefix("/").replace("/", "_")
    if not label:
        raise Refused(f"Error: {name} is required for {arguments['command']} command")
    return label


def _require_shared(call: BuiltinCall, label: str) -> str:
    """Returns the label if the block belongs to the agent.

    Removing an isolated block would only reveal the agent's again.
    """
    if call.is_isolated(label):
        raise Refused(_ISOLATED.format(label=label))
    return label


def _require_editable(memory: CoreMemory, label: str) -> Block:
    """Returns the block under a label if the agent may edit it.

    The service would let an owner rename read-only blocks.
    """
    block = memory.block(label)
    if block is None:
        available = ", ".join(block.label for block in memory.blocks)
        raise Refused(f"Block field {label} does not exist (available sections = {available})")
    if block.read_only:
        raise Refused(READ_ONLY_TEXT)
    return block
