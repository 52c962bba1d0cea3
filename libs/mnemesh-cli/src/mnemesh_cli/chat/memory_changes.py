"""The changes that a turn makes to core memory, found by comparing the blocks before and after."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from mnemesh.blocks.v1 import blocks_pb2
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import MnemeshError


@dataclass(frozen=True, slots=True)
class BlockChange:
    """The lines that were removed from a block and added to it."""

    label: str
    removed: tuple[str, ...]
    added: tuple[str, ...]


class MemoryTracker:
    """Tracks the core memory of one agent. It sees every change, whichever tool made it."""

    def __init__(self, mnemesh: Mnemesh, agent_id: str) -> None:
        self._mnemesh = mnemesh
        self._agent_id = agent_id
        self._known: blocks_pb2.CoreMemory | None = None

    async def changes(self) -> list[BlockChange]:
        """Returns the changes since the last call; none at the first call, and while the memory cannot be read."""
        before = self._known
        try:
            if before is None:
                self._known = await self._mnemesh.blocks.core_memory(self._agent_id)
                return []
            after = await self._mnemesh.blocks.core_memory_since(self._agent_id, before.revision)
        except MnemeshError:
            # The chat continues while only the view of the memory is unavailable.
            return []
        if after is None:
            return []
        self._known = after
        return block_changes(before, after)


def block_changes(before: blocks_pb2.CoreMemory, after: blocks_pb2.CoreMemory) -> list[BlockChange]:
    """Returns the changed blocks, in the order of their labels in `before` and then in `after`."""
    old = {block.label: block.value for block in before.blocks}
    new = {block.label: block.value for block in after.blocks}
    return [
        _change(label, old.get(label, ""), new.get(label, ""))
        for label in dict.fromkeys((*old, *new))
        if old.get(label) != new.get(label)
    ]


def _change(label: str, old: str, new: str) -> BlockChange:
    lines = [line for line in difflib.ndiff(old.splitlines(), new.splitlines()) if line[:2] in ("- ", "+ ")]
    return BlockChange(
        label,
        removed=tuple(line[2:] for line in lines if line.startswith("- ")),
        added=tuple(line[2:] for line in lines if line.startswith("+ ")),
    )
