"""Core memory: blocks, and the edits that an agent makes to them."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Block:
    """A block of core memory as the prompt shows it. `limit` counts characters."""

    id: str
    label: str
    value: str
    limit: int
    description: str | None = None
    read_only: bool = False
    revision: int = 0


@dataclass(frozen=True, slots=True)
class CoreMemory:
    """All blocks of an agent in their order, under one revision."""

    agent_id: str
    revision: int
    blocks: tuple[Block, ...] = ()
    updated_at: datetime | None = None

    def block(self, label: str) -> Block | None:
        """The block under a label, or None."""
        return next((block for block in self.blocks if block.label == label), None)


@dataclass(frozen=True, slots=True)
class AgentAuthor:
    """The agent on whose behalf a block is edited."""

    agent_id: str
    tool_call_id: str | None = None
    run_id: str | None = None
    conversation_id: str | None = None
    """The conversation, where it has blocks for itself: these are edited first."""


@dataclass(frozen=True, slots=True)
class Append:
    """Adds text on a new line at the end."""

    text: str


@dataclass(frozen=True, slots=True)
class ReplaceAll:
    """Replaces every occurrence."""

    old_text: str
    new_text: str


@dataclass(frozen=True, slots=True)
class ReplaceUnique:
    """Replaces the only occurrence."""

    old_text: str
    new_text: str


@dataclass(frozen=True, slots=True)
class InsertLine:
    """Inserts behind a line, 0 being the beginning and -1 the end; refused as for Rethink."""

    line: int
    text: str
    base_revision: int | None = None


@dataclass(frozen=True, slots=True)
class Rethink:
    """Writes the whole value anew; refused where the block is not at `base_revision` any more, if that is given."""

    value: str
    base_revision: int | None = None


@dataclass(frozen=True, slots=True)
class Patch:
    """Applies hunks by their context."""

    patch: str


BlockEdit = Append | ReplaceAll | ReplaceUnique | InsertLine | Rethink | Patch
