"""What a turn changes in core memory, told by comparing the blocks before and after."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from mnemesh.blocks.v1 import blocks_pb2
from mnemesh_kit.errors import MnemeshError

from mnemesh_client.mnemesh import Mnemesh


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of one block: the lines that went and the lines that came."""

    label: str
    removed: tuple[str, ...]
    added: tuple[str, ...]


class MemoryWatch:
    """Follows the core memory of one agent. It shows what really changed, whichever tool did it."""

    def __init__(self, mnemesh: Mnemesh, agent_id: str) -> None:
        self._mnemesh = mnemesh
        self._agent_id = agent_id
        self._known: blocks_pb2.CoreMemory | None = None

    async def begin(self) -> None:
        """Notes the memory as it is before a turn."""
        try:
            self._known = await self._mnemesh.blocks.core_memory(self._agent_id)
        except MnemeshError:
            # the conversation goes on where only the view of its memory is away
            self._known = None

    async def edits(self) -> list[Edit]:
        """What changed since the last look."""
        before = self._known
        if before is None:
            return []
        try:
            after = await self._mnemesh.blocks.core_memory_since(self._agent_id, before.revision)
        except MnemeshError:
            return []
        if after is None:
            return []
        self._known = after
        return differences(before, after)


def differences(before: blocks_pb2.CoreMemory, after: blocks_pb2.CoreMemory) -> list[Edit]:
    """The edits that lead from one core memory to another, by label."""
    old = {block.label: block.value for block in before.blocks}
    new = {block.label: block.value for block in after.blocks}
    return [
        _edit(label, old.get(label, ""), new.get(label, ""))
        for label in dict.fromkeys((*old, *new))
        if old.get(label) != new.get(label)
    ]


def _edit(label: str, old: str, new: str) -> Edit:
    changes = [line for line in difflib.ndiff(old.splitlines(), new.splitlines()) if line[:2] in ("- ", "+ ")]
    return Edit(
        label,
        removed=tuple(line[2:] for line in changes if line.startswith("- ")),
        added=tuple(line[2:] for line in changes if line.startswith("+ ")),
    )
