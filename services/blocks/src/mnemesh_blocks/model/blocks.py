"""Blocks, their revisions and the core memory they form, as values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

DEFAULT_LIMIT: Final = 20_000


@dataclass(frozen=True, slots=True)
class AgentAuthor:
    """An agent that edits by a tool."""

    agent_id: str
    tool_call_id: str | None = None
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class OwnerAuthor:
    """A caller of the API, who may also write read-only blocks."""

    subject_id: str


Author = AgentAuthor | OwnerAuthor


class Operation(StrEnum):
    """What a change did."""

    CREATE = "create"
    UPDATE = "update"
    APPEND = "append"
    REPLACE_ALL = "replace_all"
    REPLACE_UNIQUE = "replace_unique"
    INSERT_LINE = "insert_line"
    RETHINK = "rethink"
    PATCH = "patch"
    REVERT = "revert"
    UNDO = "undo"
    REDO = "redo"


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a block came from; ids that mnemesh carries and does not interpret."""

    created_by_id: str = ""
    last_updated_by_id: str = ""
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    entity_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A labelled piece of core memory. What it must keep is in rules.py."""

    id: str
    label: str
    value: str = ""
    limit: int = DEFAULT_LIMIT
    description: str | None = None
    read_only: bool = False
    revision: int = 1
    content_revision: int = 1
    """The revision whose value this one shows: an older one after an undo."""
    name: str | None = None
    tags: tuple[str, ...] = ()
    metadata: str | None = None
    """A JSON object as text."""
    hidden: bool = False
    is_template: bool = False
    template_name: str | None = None
    preserve_on_migration: bool = False
    identity_ids: tuple[str, ...] = ()
    created_at: datetime
    updated_at: datetime
    provenance: Provenance = field(default_factory=Provenance)


def copied(block: Block, block_id: str, subject_id: str, now: datetime) -> Block:
    """A block that says the same, with a history of its own; lists leave it out as they do all that is hidden."""
    return replace(
        block,
        id=block_id,
        revision=1,
        content_revision=1,
        hidden=True,
        created_at=now,
        updated_at=now,
        provenance=replace(block.provenance, created_by_id=subject_id, last_updated_by_id=subject_id),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRevision:
    """What a block said after one change, and who made it."""

    block_id: str
    revision: int
    operation: Operation
    label: str
    value: str
    description: str | None
    limit: int
    read_only: bool
    author: Author
    created_at: datetime
    parent: int | None = None
    """The revision whose value this one replaced; None where the value stayed, and for undo and redo."""
    previous_value: str | None = None
    """The value one revision earlier, where it was asked for."""


@dataclass(frozen=True, slots=True)
class CoreMemory:
    """The blocks of one agent in the order of their attachment, as of one revision."""

    agent_id: str
    revision: int = 0
    blocks: tuple[Block, ...] = ()
    updated_at: datetime | None = None

    def with_own(self, own: CoreMemory) -> CoreMemory:
        """What a conversation shows that has blocks for itself: these in the place of the agent's so labelled."""
        by_label = {block.label: block for block in own.blocks}
        shown = [by_label.pop(block.label, block) for block in self.blocks]
        times = [time for time in (self.updated_at, own.updated_at) if time is not None]
        return CoreMemory(
            self.agent_id,
            self.revision + own.revision,
            (*shown, *by_label.values()),
            max(times) if times else None,
        )
