"""The scope of the erasure of an agent, and its result."""

from dataclasses import dataclass, fields
from typing import Final


@dataclass(frozen=True, slots=True)
class ErasureScope:
    """Resources that are erased with an agent, besides those created for it. Resources of other agents stay."""

    unshared_blocks: bool = False
    """Blocks that were attached to the agent and that no other agent holds."""
    unshared_archives: bool = False
    """Archives that were attached to the agent and that no other agent holds, with their passages."""


CREATED_FOR_AGENT: Final = ErasureScope()


@dataclass(frozen=True, slots=True)
class Erased:
    """The number of erased items by store."""

    agents: int = 0
    messages: int = 0
    contexts: int = 0
    passages: int = 0
    archives: int = 0
    detached_blocks: int = 0
    """Blocks that were kept."""
    deleted_blocks: int = 0
    episodes: int = 0
    facts: int = 0
    runs: int = 0
    """Records of runs, in agents that were kept."""

    def __add__(self, other: "Erased") -> "Erased":
        return Erased(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))
