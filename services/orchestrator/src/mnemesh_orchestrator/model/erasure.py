"""The result of an erasure."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Erased:
    """The number of erased items by store."""

    agents: int = 0
    messages: int = 0
    contexts: int = 0
    passages: int = 0
    archives: int = 0
    detached_blocks: int = 0
    """Blocks that were kept because other agents hold them."""
    deleted_blocks: int = 0

    def __add__(self, other: "Erased") -> "Erased":
        return Erased(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))
