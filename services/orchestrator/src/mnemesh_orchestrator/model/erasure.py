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
class Deletion:
    """The record of a deletion in progress. It has all that another process needs to finish it."""

    unshared_blocks: bool = False
    unshared_archives: bool = False
    together_with: tuple[str, ...] = ()
    """The other agents that the same request deletes: what was created for one of them goes with the last holder."""
    partner_id: str | None = None
    """A partner that was never visible: it has no record of its own, and its parts are erased with the agent."""

    @property
    def scope(self) -> ErasureScope:
        """The scope of the erasure."""
        return ErasureScope(self.unshared_blocks, self.unshared_archives)


@dataclass(frozen=True, slots=True)
class DeletionStart:
    """The agents that a request deletes, each with its record, and the sleeptime groups that end with them."""

    agents: tuple[tuple[str, Deletion], ...] = ()
    group_ids: tuple[str, ...] = ()


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
