"""The other rooms as this one calls them. Adapters over gRPC stand in `clients/`.

Every call may raise an MnemeshError: Unavailable and DeadlineExceeded where the
room is away, the room's own reasons otherwise. Calls with a `request_id` may
be repeated under it without a further effect.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from mnemesh_types.messages import Message

from mnemesh_orchestrator.model.episodes import EpisodeCommit, MemoryBundle, MemoryHits, MemoryScope
from mnemesh_orchestrator.model.erasure import Erased
from mnemesh_orchestrator.model.memory import (
    ArchivalSummary,
    Block,
    CommitOutcome,
    ContextWindow,
    CoreMemory,
    CustomTool,
    MessageHit,
    PassageHit,
    ToolResult,
)


@dataclass(frozen=True, slots=True)
class StepCommit:
    """One step as it is committed to recall: `messages` enter the window in order.

    `base_version` is the window's version that the step was built on;
    `system_text` is set where the system message is rewritten.
    """

    agent_id: str
    conversation_id: str
    run_id: str
    epoch: int
    step_id: str
    base_version: int
    messages: tuple[Message, ...]
    system_text: str | None = None


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


class CoreMemoryPort(Protocol):
    """Core memory (the blocks room)."""

    async def get(
        self, agent_id: str, if_revision: int | None = None, conversation_id: str | None = None
    ) -> CoreMemory | None:
        """The agent's blocks, as a conversation shows them that has some for itself; None where `if_revision` holds."""
        ...

    async def isolate(
        self,
        request_id: str,
        agent_id: str,
        conversation_id: str,
        labels: Sequence[str],
        source_conversation_id: str | None = None,
    ) -> tuple[str, ...]:
        """Gives a conversation copies of its own of the blocks under `labels`; their ids. Raises BLOCK_LABEL_NOT_FOUND.

        They begin as the agent's blocks are, or as another conversation shows them.
        """
        ...

    async def release(self, request_id: str, agent_id: str, conversation_id: str) -> None:
        """Deletes what a conversation has for itself."""
        ...

    async def edit(self, request_id: str, author: AgentAuthor, label: str, edit: BlockEdit) -> Block:
        """One atomic edit; the block after it."""
        ...

    async def create(
        self, request_id: str, agent_id: str, block: Block, metadata: str | None = None, tags: Sequence[str] = ()
    ) -> Block:
        """Makes a block (its id is ignored) and gives it to the agent."""
        ...

    async def attach(self, request_id: str, agent_id: str, block_id: str) -> None:
        """Gives an existing block to the agent."""
        ...

    async def detach(self, request_id: str, agent_id: str, label: str) -> None:
        """Takes the block under a label from the agent; the block stays."""
        ...

    async def relabel(self, request_id: str, block_id: str, label: str) -> Block:
        """Renames a block for all its holders."""
        ...

    async def delete(self, request_id: str, block_id: str) -> bool:
        """Deletes a block and takes it from everybody; False where there is none."""
        ...

    async def identify(self, request_id: str, block_id: str, identity_id: str, *, attach: bool) -> bool:
        """Attaches an identity to a block, or detaches it; whether that changed anything. Raises NotFound."""
        ...

    async def identities_of(self, block_id: str) -> tuple[str, ...]:
        """The identities that are attached to a block. Raises NotFound."""
        ...

    async def identified(self, identity_id: str) -> tuple[str, ...]:
        """The ids of the blocks that an identity is attached to, by id."""
        ...

    async def describe(self, request_id: str, block_id: str, description: str) -> Block:
        """Changes a block's description."""
        ...

    async def erase_agent(self, request_id: str, agent_id: str) -> Erased:
        """Forgets the agent, and the blocks that nobody else holds."""
        ...


class RecallPort(Protocol):
    """Recall memory and context windows (the recall room)."""

    async def create_context(
        self, request_id: str, agent_id: str, conversation_id: str, messages: Sequence[Message]
    ) -> ContextWindow:
        """Makes a conversation's window, the system message first."""
        ...

    async def fork_context(
        self,
        request_id: str,
        agent_id: str,
        source_conversation_id: str,
        conversation_id: str,
        system: Message,
        until_message_id: str | None = None,
    ) -> ContextWindow:
        """Makes a window that shares another's messages, all or up to one, under a system message of its own."""
        ...

    async def delete_context(self, request_id: str, conversation_id: str) -> None:
        """Deletes a window with its system message; the other messages stay in recall. Raises NotFound."""
        ...

    async def get_context(self, conversation_id: str, if_version: int | None = None) -> ContextWindow | None:
        """The window, or None where `if_version` still holds."""
        ...

    async def window_ids(self, conversation_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The ids of the stored messages in windows, by conversation; at most 1000, unknown ones left out."""
        ...

    async def commit_step(self, commit: StepCommit) -> CommitOutcome:
        """Commits a step in one transaction; idempotent by its step id. Raises LEASE_LOST, STEP_CONFLICT."""
        ...

    async def replace_context(
        self,
        request_id: str,
        agent_id: str,
        conversation_id: str,
        base_version: int,
        message_ids: Sequence[str],
        new_messages: Sequence[Message] = (),
        system_text: str | None = None,
        run_id: str | None = None,
        epoch: int | None = None,
        memories: Sequence[EpisodeCommit] = (),
    ) -> ContextWindow:
        """Replaces the window, and keeps memories with it, all or nothing; without run and epoch as the owner.

        Raises WINDOW_MOVED, LEASE_LOST, and where a fact that a memory supersedes or confirms is closed by now
        FACT_CLOSED (metadata: fact_id).
        """
        ...

    async def append(self, request_id: str, agent_id: str, messages: Sequence[Message]) -> None:
        """Stores messages outside of any window."""
        ...

    async def search(
        self,
        agent_id: str,
        query: str,
        *,
        roles: Sequence[str] = (),
        limit: int = 5,
        start_date: str | None = None,
        end_date: str | None = None,
        time_zone: str = "UTC",
    ) -> tuple[MessageHit, ...]:
        """Hybrid search of the agent's messages, best first."""
        ...

    async def erase_agent(self, request_id: str, agent_id: str) -> Erased:
        """Forgets the agent's windows and messages."""
        ...


class EpisodesPort(Protocol):
    """Episodes and facts (the recall room). EraseAgent of recall erases an agent's own with its messages."""

    async def bundle(self, scope: MemoryScope, max_episodes: int, max_facts: int) -> MemoryBundle:
        """The newest episodes and the most salient facts that hold now."""
        ...

    async def search(
        self, scopes: Sequence[MemoryScope], query: str, *, limit: int, held_at: datetime | None = None
    ) -> MemoryHits:
        """At most `limit` facts that hold, or held at a time, and `limit` episodes that had begun by then."""
        ...


class ArchivalPort(Protocol):
    """Archival memory (the archival room)."""

    async def insert(self, request_id: str, agent_id: str, text: str, tags: Sequence[str] = ()) -> str:
        """Stores a passage in the agent's archive, made when it has none; the passage's id."""
        ...

    async def search(
        self,
        agent_id: str,
        query: str,
        *,
        tags: Sequence[str] = (),
        match_all_tags: bool = False,
        limit: int = 10,
        start_date: str | None = None,
        end_date: str | None = None,
        time_zone: str = "UTC",
    ) -> tuple[PassageHit, ...]:
        """Hybrid search of the agent's archives as one, best first."""
        ...

    async def summary(self, agent_id: str, if_revision: int | None = None) -> ArchivalSummary | None:
        """How much there is, or None where `if_revision` still holds."""
        ...

    async def attach(self, request_id: str, agent_id: str, archive_id: str) -> None:
        """Gives an archive to the agent."""
        ...

    async def erase_agent(self, request_id: str, agent_id: str) -> Erased:
        """Forgets the agent, and the archives that nobody else holds."""
        ...


class ToolsPort(Protocol):
    """Custom tools (the tools room)."""

    async def definitions(self, ids: Sequence[str] = (), names: Sequence[str] = ()) -> tuple[CustomTool, ...]:
        """Stored tools by id and name; unknown ones are left out."""
        ...

    async def upsert_source(self, request_id: str, source_code: str) -> CustomTool:
        """Stores Python source as a tool, by the name of its last function."""
        ...

    async def execute(
        self,
        tool_id: str,
        arguments: str,
        *,
        agent_id: str,
        agent_name: str,
        blocks: Mapping[str, str],
        environment: Mapping[str, str],
    ) -> tuple[ToolResult, Mapping[str, str]]:
        """Runs a tool in the sandbox, once; its result, and the block values that it changed."""
        ...
