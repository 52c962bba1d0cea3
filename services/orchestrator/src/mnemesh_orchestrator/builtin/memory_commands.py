"""The tool `memory`: memory blocks as files under /memories/, one command per call."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from mnemesh_orchestrator.builtin.call import BuiltinCall, Refused
from mnemesh_orchestrator.builtin.core_memory import core_memory, edited, insertion
from mnemesh_orchestrator.model.core_memory import Block, CoreMemory, ReplaceUnique
from mnemesh_orchestrator.ports.blocks import CoreMemoryPort

READ_ONLY_TEXT: Final = "Error This block is read-only and cannot be edited."
_OWN: Final = "Memory block '{label}' belongs to this conversation and can be edited, but not renamed or deleted."
_ROOT: Final = "/memories/"
_DEFAULT_LIMIT: Final = 0


async def run_command(blocks: CoreMemoryPort, call: BuiltinCall, given: Mapping[str, Any]) -> str:
    """Runs a command. Raises Refused if an argument of the command is missing."""
    return await _COMMANDS[given["command"]](blocks, call, given)


async def _create(blocks: CoreMemoryPort, call: BuiltinCall, given: Mapping[str, Any]) -> str:
    label, description = _label(given, "path"), _required(given, "description")
    block = Block("", label, given.get("file_text", ""), _DEFAULT_LIMIT, description)
    made = await blocks.create(call.effect(0), call.agent_id, block)
    call.has_edited(label, made.revision)
    return f"Successfully created memory block '{label}'"


async def _str_replace(blocks: CoreMemoryPort, call: BuiltinCall, given: Mapping[str, Any]) -> str:
    edit = ReplaceUnique(_required(given, "old_str"), _required(given, "new_str"))
    return await edited(blocks, call, _label(given, "path"), edit)


async def _insert(blocks: CoreMemoryPort, call: BuiltinCall, given: Mapping[str, Any]) -> str:
    text, label = _required(given, "insert_text"), _label(given, "path")
    return await edited(blocks, call, label, insertion(call, label, text, given))


async def _delete(blocks: CoreMemoryPort, call: BuiltinCall, given: Mapping[str, Any]) -> str:
    label = _shared(call, _label(given, "path"))
    block = (await core_memory(blocks, call)).block(label)
    if block is not None and block.read_only:
        raise Refused(READ_ONLY_TEXT)
    # Also if the agent holds no such block: after a crash the call may repeat one that removed it, and only the service
    # knows.
    await blocks.detach(call.effect(0), call.agent_id, label)
    if call.sight is not None:
        call.sight.gone(label)
    return f"Successfully deleted memory block '{label}'"


async def _rename(blocks: CoreMemoryPort, call: BuiltinCall, given: Mapping[str, Any]) -> str:
    if "path" in given and "old_path" not in given:
        label, description = _label(given, "path"), _required(given, "description")
        block = _editable(await core_memory(blocks, call), label)
        described = await blocks.describe(call.effect(0), block.id, description)
        call.has_edited(label, described.revision)
        return f"Successfully updated description of memory block '{label}'"
    old, new = _shared(call, _label(given, "old_path")), _shared(call, _label(given, "new_path"))
    held = await core_memory(blocks, call)
    if held.block(old) is None and held.block(new) is not None:
        # A repeat finds this if its first attempt succeeded and its answer was lost.
        return f"Memory block '{new}' exists, and no memory block is called '{old}'"
    renamed = await blocks.relabel(call.effect(0), _editable(held, old).id, new)
    call.has_edited(new, renamed.revision, before=old)
    return f"Successfully renamed memory block '{old}' to '{new}'"


_COMMANDS: Final[Mapping[str, Callable[[CoreMemoryPort, BuiltinCall, Mapping[str, Any]], Awaitable[str]]]] = {
    "create": _create,
    "str_replace": _str_replace,
    "insert": _insert,
    "delete": _delete,
    "rename": _rename,
}


def _required(given: Mapping[str, Any], name: str) -> str:
    if name not in given:
        raise Refused(f"Error: {name} is required for {given['command']} command")
    return str(given[name])


def _label(given: Mapping[str, Any], name: str) -> str:
    """Returns the label that a path names: the part below /memories/, with folders joined by underscores."""
    label = _required(given, name).removeprefix(_ROOT).removeprefix("/").replace("/", "_")
    if not label:
        raise Refused(f"Error: {name} is required for {given['command']} command")
    return label


def _shared(call: BuiltinCall, label: str) -> str:
    """Returns the label if the block belongs to the agent.

    Removing an isolated block would only reveal the agent's again.
    """
    if call.is_isolated(label):
        raise Refused(_OWN.format(label=label))
    return label


def _editable(held: CoreMemory, label: str) -> Block:
    """Returns the block under a label if the agent may edit it.

    The service would let an owner rename read-only blocks.
    """
    block = held.block(label)
    if block is None:
        available = ", ".join(block.label for block in held.blocks)
        raise Refused(f"Block field {label} does not exist (available sections = {available})")
    if block.read_only:
        raise Refused(READ_ONLY_TEXT)
    return block
