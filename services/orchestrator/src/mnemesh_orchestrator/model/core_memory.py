"""Core memory: blocks, and the edits that an agent makes to them."""

from dataclasses import dataclass
from datetime import datetime

from mnemesh_types.provenance import Provenance


@dataclass(frozen=True, slots=True)
class Block:
    """A block of core memory. The prompt shows its first fields, up to `read_only`. `limit` counts characters."""

    id: str
    label: str
    value: str
    limit: int
    description: str | None = None
    read_only: bool = False
    revision: int = 0
    name: str | None = None
    tags: tuple[str, ...] = ()
    metadata: str | None = None
    hidden: bool = False
    is_template: bool = False
    template_name: str | None = None
    preserve_on_migration: bool = False
    identity_ids: tuple[str, ...] = ()
    created_for_agent_id: str | None = None
    content_revision: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None
    provenance: Provenance = Provenance()


@dataclass(frozen=True, slots=True)
class NewBlock:
    """A block to create for an agent. A limit of 0 takes the default of the blocks service."""

    label: str
    value: str = ""
    description: str | None = None
    limit: int = 0
    read_only: bool = False
    metadata: str | None = None
    tags: tuple[str, ...] = ()
    identity_ids: tuple[str, ...] = ()
    name: str | None = None
    hidden: bool = False
    is_template: bool = False
    template_name: str | None = None
    preserve_on_migration: bool = False


@dataclass(frozen=True, slots=True)
class CoreMemory:
    """The blocks of an agent in their order, under one revision."""

    agent_id: str
    revision: int
    blocks: tuple[Block, ...] = ()
    updated_at: datetime | None = None

    def block(self, label: str) -> Block | None:
        """Returns the block under a label, or None."""
        return next((block for block in self.blocks if block.label == label), None)


@dataclass(frozen=True, slots=True)
class AgentAuthor:
    """The agent that edits a block."""

    agent_id: str
    tool_call_id: str | None = None
    run_id: str | None = None
    conversation_id: str | None = None
    """The conversation, if it has isolated blocks. Those are edited instead of the agent's."""


@dataclass(frozen=True, slots=True)
class Append:
    """Appends text on a new line."""

    text: str


@dataclass(frozen=True, slots=True)
class ReplaceAll:
    """Replaces every occurrence of a text."""

    old_text: str
    new_text: str


@dataclass(frozen=True, slots=True)
class ReplaceUnique:
    """Replaces the only occurrence of a text."""

    old_text: str
    new_text: str


@dataclass(frozen=True, slots=True)
class InsertLine:
    """Inserts text after a line: 0 is the beginning, -1 the end. A moved `base_revision` is refused, as for Rethink."""

    line: int
    text: str
    base_revision: int | None = None


@dataclass(frozen=True, slots=True)
class Rethink:
    """Replaces the whole value. Refused if `base_revision` is set and is not the current revision."""

    value: str
    base_revision: int | None = None


@dataclass(frozen=True, slots=True)
class Patch:
    """Applies a patch, whose hunks are located by their context."""

    patch: str


BlockEdit = Append | ReplaceAll | ReplaceUnique | InsertLine | Rethink | Patch
