"""Core memory: blocks, the edits that an agent makes to them, and which memory a turn may reach."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mnemesh_kit.ids import is_id
from mnemesh_types import blocks
from mnemesh_types.agents import ExtractionScope
from mnemesh_types.blocks import (
    AppendEdit,
    Block,
    InsertLineEdit,
    PatchEdit,
    ReplaceAllEdit,
    ReplaceUniqueEdit,
    RethinkEdit,
)

from mnemesh_orchestrator.model.episodes import MemoryExtractionSettings, MemoryScope

UNSEEN = 0
"""No block has this revision, so an edit that is based on it is refused."""


class CoreMemory(blocks.CoreMemory):
    """The blocks of an agent in their order, under one revision."""

    __slots__ = ()

    def block(self, label: str) -> Block | None:
        """Returns the block under a label, or None."""
        return next((block for block in self.blocks if block.label == label), None)

    def after(self, edited: "EditedBlock") -> "CoreMemory | None":
        """Returns this memory after an edit; None if it has changed otherwise since it was read."""
        block, before = edited.block, self.block(edited.block.label)
        is_next = before is not None and (before.id, before.revision + 1) == (block.id, block.revision)
        if not is_next or edited.core_memory_revision != self.revision + 1:
            return None
        blocks = tuple(block if known is before else known for known in self.blocks)
        return replace(self, revision=edited.core_memory_revision, blocks=blocks, updated_at=block.updated_at)


@dataclass(frozen=True, slots=True)
class EditedBlock:
    """A block after an edit, and the revision of the agent's core memory that the edit created."""

    block: Block
    core_memory_revision: int


@dataclass(frozen=True, slots=True)
class AgentAuthor(blocks.AgentAuthor):
    """The agent that edits a block."""

    conversation_id: str | None = None
    """The conversation, if it has isolated blocks. Those are edited instead of the agent's."""


BlockEdit = AppendEdit | ReplaceAllEdit | ReplaceUniqueEdit | InsertLineEdit | RethinkEdit | PatchEdit


class SeenRevisions:
    """The block revisions that an agent knows, by label: those in its prompt, and those that its own edits created.

    An edit counts as seen only if it followed a seen revision. A change by another author before it stays unseen.
    """

    def __init__(self, revisions: Mapping[str, int]) -> None:
        self._revisions = dict(revisions)
        self._memory: CoreMemory | None = None
        self._is_current = False

    @property
    def revisions(self) -> Mapping[str, int]:
        """A copy of the known revisions."""
        return dict(self._revisions)

    def of(self, label: str) -> int:
        """Returns the seen revision of the block under a label, or UNSEEN."""
        return self._revisions.get(label, UNSEEN)

    def record_edit(self, label: str, revision: int, before: str | None = None) -> None:
        """Records that the agent created a revision of the block under `label`, which was called `before`."""
        if revision == self.of(label if before is None else before) + 1:
            self._revisions[label] = revision

    def begin(self, memory: CoreMemory) -> None:
        """Takes the memory that the calls begin with."""
        self._memory = memory

    def begin_call(self) -> None:
        """Records that a call begins, during which others may change the memory."""
        self._is_current = False

    @property
    def memory(self) -> CoreMemory | None:
        """The whole memory after the edit that the last call made; None if it has to be read."""
        return self._memory if self._is_current else None

    def record_block(self, edited: EditedBlock) -> None:
        """Records an edit of the agent."""
        self.record_edit(edited.block.label, edited.block.revision)
        self._memory = self._memory and self._memory.after(edited)
        self._is_current = self._memory is not None

    def remove(self, label: str) -> None:
        """Records that the agent no longer holds a block under the label."""
        self._revisions[label] = UNSEEN

    def restore(self, revisions: Mapping[str, int]) -> None:
        """Records the revisions that the journal holds of an earlier call of the same answer."""
        self._revisions.update(revisions)

    def since(self, before: Mapping[str, int]) -> Mapping[str, int] | None:
        """Returns the revisions that differ from `before`, or None."""
        changes = {label: revision for label, revision in self._revisions.items() if before.get(label) != revision}
        return changes or None


@dataclass(frozen=True, slots=True)
class MemoryAccess:
    """`stored` is the scope of new memories. `found` are the scopes that may be shown, `stored` among them."""

    stored: MemoryScope
    found: tuple[MemoryScope, ...]


def memory_access(
    agent_id: str,
    shared_name: str | None,
    extraction: MemoryExtractionSettings | None,
    *,
    conversation_id: str | None = None,
    senders: Iterable[str | None] = (),
    group_id: str | None = None,
) -> MemoryAccess:
    """Returns the scopes of an agent's memories. Those of an identity are found only if it is the only sender.

    Args:
        shared_name: The named scope that the agent shares with others.
        extraction: The agent's settings.
        senders: The senders of the messages that users sent; None for a message without one.
        group_id: The group of the run.
    """
    own = MemoryScope(agent_id)
    base = own if shared_name is None else MemoryScope(agent_id, shared_name)
    only = sole_identity(senders)
    identity = None if only is None else MemoryScope(agent_id, identity_id=only)
    conversation = None if conversation_id is None else MemoryScope(agent_id, conversation_id=conversation_id)
    group = None if group_id is None else MemoryScope(agent_id, group_id=group_id)
    stored = base
    if extraction is not None and extraction.scope is ExtractionScope.SENDER:
        stored = identity or conversation or base
    found = (own, base, identity, group, conversation)
    return MemoryAccess(stored, tuple(dict.fromkeys(scope for scope in found if scope is not None)))


def sole_identity(senders: Iterable[str | None]) -> str | None:
    """Returns the identity that sent all messages; None if it is not one, or if a message has another sender."""
    distinct = set(senders)
    if len(distinct) != 1:
        return None
    sender_id = distinct.pop()
    return sender_id if sender_id is not None and is_id(sender_id, "identity") else None
