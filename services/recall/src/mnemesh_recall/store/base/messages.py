"""The Protocol of the store of messages and context windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_types.messages import Message

from mnemesh_recall.model.contexts import (
    ContextFork,
    ContextReplacement,
    ContextWindow,
    ContextWindowIds,
    NewContext,
    StepCommit,
    StepResult,
)
from mnemesh_recall.model.messages import AgentErasure, AppendResult, MessageBatch, MessageFilter, SenderErasure
from mnemesh_recall.model.ranking import Candidate
from mnemesh_recall.model.search import SearchScope, Surroundings, WordCandidates, WordQuery


class MessageStore(Protocol):
    """The messages and context windows of all organizations.

    Every method is one transaction. A resource of another organization is NotFound. An agent belongs to the
    organization that writes it first. A write for an erased agent raises Erased.

    Storing a message whose id exists succeeds without a change if both have the same content, and raises AlreadyExists
    otherwise. Sequence ids are assigned in the writing transaction, so their order is the commit order within an agent.

    A repeated `key` returns the first result again, or raises RequestIdReused if the content differs.

    Example:
        window = await store.create_context(organization_id, NewContext(...), key)
        result = await store.commit_step(organization_id, StepCommit(base_version=window.version, ...))
    """

    async def create_context(self, organization_id: str, new: NewContext, key: RequestKey | None) -> ContextWindow:
        """Creates a window at version 1 over new messages.

        Raises:
            AlreadyExists: the conversation has a window.
        """
        ...

    async def get_context(self, organization_id: str, conversation_id: str, if_version: int | None) -> ContextWindow:
        """Returns a window in one consistent read, without its messages if its version is `if_version`.

        In every window that the store returns, a tool call without a return is followed by an error return
        (model/unanswered_calls.py).
        """
        ...

    async def get_context_ids(
        self, organization_id: str, conversation_ids: Sequence[str]
    ) -> tuple[ContextWindowIds, ...]:
        """Returns the ids of the stored messages in windows, in one consistent read.

        The order is that of `conversation_ids`. Conversations without a window are left out.
        """
        ...

    async def commit_step(self, organization_id: str, step: StepCommit) -> StepResult:
        """Stores the messages of a step, rewrites the text of the system message, and extends the window.

        The checks, in this order:

        1. The step. If it was committed before, the first result is returned.
        2. The epoch. A higher epoch than the stored one is kept.
        3. The version. If the window has moved, the messages are appended to the current window, which is returned.

        The text of the system message and the times of messages are not part of the content of a step, because another
        lease holder renders and stamps them again.

        Raises:
            StepConflict: the step was committed with other messages.
            LeaseLost: the window has a higher epoch.
        """
        ...

    async def replace_context(
        self, organization_id: str, new: ContextReplacement, key: RequestKey | None
    ) -> ContextWindow:
        """Replaces the whole window, and stores the error returns among its ids.

        The memories are committed in the same transaction, as by EpisodeStore.commit_episode.

        Raises:
            LeaseLost: the window has a higher epoch.
            WindowMoved: the window is not at `base_version`.
            NotFound: the agent has no message with one of the ids.
        """
        ...

    async def fork_context(self, organization_id: str, fork: ContextFork, key: RequestKey | None) -> ContextWindow:
        """Creates a window that shares the messages of another one, under its own system message."""
        ...

    async def delete_context(
        self, organization_id: str, conversation_id: str, key: RequestKey | None, *, delete_messages: bool
    ) -> int:
        """Deletes a window and returns the number of deleted messages.

        With `delete_messages`, the messages that only this conversation shows or wrote are deleted, too.
        """
        ...

    async def append_messages(self, organization_id: str, batch: MessageBatch, key: RequestKey | None) -> AppendResult:
        """Stores all messages of the batch or none, and appends them to the window that the batch names."""
        ...

    async def get_messages(
        self, organization_id: str, ids: Sequence[str], row_ids: Mapping[str, int] | None = None
    ) -> tuple[Message, ...]:
        """Returns the messages that exist among `ids`, in the order of `ids`.

        `row_ids` has the rows of some of them, as `WordCandidates.row_ids` returns them: these are found without the
        index of ids.
        """
        ...

    async def list_messages(self, organization_id: str, filter_: MessageFilter, page: PageQuery) -> Page[Message]:
        """Returns a page, ordered by sequence id within one agent and by insertion over several agents."""
        ...

    async def update_message(
        self, organization_id: str, changed: Message, fields: frozenset[str], key: RequestKey | None
    ) -> Message:
        """Sets the named fields of a stored message to those of `changed`. Windows that show it get a new version."""
        ...

    async def delete_message(self, organization_id: str, message_id: str, key: RequestKey | None) -> None:
        """Deletes a message from every window and index. A message that does not exist is no error.

        Raises:
            FailedPrecondition: it is the system message of a window.
        """
        ...

    async def search_words(
        self, organization_id: str, scope: SearchScope, words: WordQuery, limit: int
    ) -> WordCandidates:
        """Returns approximately the `limit` best messages by words, and those that equal the query, newest first.

        Messages of committed steps that are not indexed yet are indexed before, for at most a second. So are, after a
        change of the word analysis, the messages of the agent in scope.
        """
        ...

    async def list_candidates(
        self, organization_id: str, scope: SearchScope, ids: Sequence[str], leaders: Sequence[str]
    ) -> list[Candidate]:
        """Returns the messages of the scope with these ids, and those that follow the leaders, newest first."""
        ...

    async def list_newest(self, organization_id: str, scope: SearchScope, limit: int) -> list[Message]:
        """Returns the searchable messages of the scope that were stored last, newest first."""
        ...

    async def read_around(
        self, organization_id: str, ids: Sequence[str], before: int, after: int
    ) -> Mapping[str, Surroundings]:
        """Returns the messages of users and agents that are beside messages in their conversation, by id.

        Args:
            organization_id: the organization.
            ids: the messages, best first: beyond a size in total, which exceeds that of a page, the last ones are left
                out. Of those around one message, the nearest ones up to a size are returned.
            before: the largest number of searchable messages before each.
            after: the largest number after each.
        """
        ...

    async def erase_agent(self, organization_id: str, agent_id: str, key: RequestKey | None) -> AgentErasure:
        """Deletes everything of an agent, and refuses later writes for it. A repeat deletes nothing more.

        Memories of named scopes that were learned from the agent alone are deleted, too.
        """
        ...

    async def erase_sender(self, organization_id: str, sender_id: str) -> SenderErasure:
        """Deletes a bounded number of a sender's messages in all agents, with what derives from them.

        That is: the other messages of their turns except for the input of other senders, the memories of any scope that
        were learned from the deleted messages, and later summaries of their agents.
        """
        ...

    async def mark_outdated_words(self) -> int:
        """Notes all messages and memories whose words are of another version of the analysis. Returns what waits."""
        ...

    async def rebuild_some_words(self) -> int | None:
        """Indexes the words of some messages or memories again. Returns their number; None if none wait."""
        ...

    async def merge_some_words(self, *, first: bool) -> bool:
        """Merges some parts of the full-text index. `first` begins to merge all. Returns whether there is more."""
        ...

    async def index_some_words(self, agent_ids: Sequence[str] | None = None, *, before: datetime | None = None) -> bool:
        """Indexes the words of some messages of committed steps, and returns whether there may be more.

        Args:
            agent_ids: only of these agents.
            before: only of agents with such messages that were committed earlier.
        """
        ...

    async def rebuild_fulltext(self) -> int:
        """Rebuilds the full-text index from all messages. Returns the number of indexed messages."""
        ...

    async def delete_expired(self, before: datetime, limit: int) -> int:
        """Deletes at most `limit` messages with an earlier time that no window shows. Returns their number."""
        ...

    async def purge_steps(self, before: datetime) -> int:
        """Deletes the records of steps that were committed earlier, except for the newest of each conversation.

        Returns:
            The number of deleted records.
        """
        ...
