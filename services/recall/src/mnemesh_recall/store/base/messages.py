"""The port of recall's store; the docstrings are its contract."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_recall.model.contexts import (
    ContextWindow,
    ContextWindowIds,
    Fork,
    NewContext,
    Replacement,
    StepCommit,
    StepResult,
)
from mnemesh_recall.model.messages import Appended, Batch, Erasure, Message, MessageFilter
from mnemesh_recall.model.outbox import OutboxRow
from mnemesh_recall.model.search import SearchScope


class MessageStore(Protocol):
    """Messages and windows of all organizations.

    Every method is one transaction. What belongs to another organization is NotFound, as if it were not there. An
    agent belongs to the organization that writes it first. Writes for an erased agent raise Erased. Storing a message
    whose id is there is a success that changes nothing when both say the same, AlreadyExists otherwise. Numbers
    (`sequence_id`) are given in the writing transaction, so their order is commit order within an agent. A `key` that
    was used before gives the first result again, or RequestIdReused where the content differs.
    """

    async def create_context(self, organization_id: str, new: NewContext, key: RequestKey | None) -> ContextWindow:
        """Makes a window at version 1 over new messages. AlreadyExists where the conversation has one."""
        ...

    async def get_context(self, organization_id: str, conversation_id: str, if_version: int | None) -> ContextWindow:
        """A window as one consistent read; without messages where its version is `if_version`.

        In every window that is given out, a tool call without a return is followed by an error return
        (messages/orphans.py).
        """
        ...

    async def get_window_ids(
        self, organization_id: str, conversation_ids: Sequence[str]
    ) -> tuple[ContextWindowIds, ...]:
        """Which stored messages windows hold, as one consistent read, in the order asked for; unknown ones left out."""
        ...

    async def commit_step(self, organization_id: str, step: StepCommit) -> StepResult:
        """Stores a step's messages, rewrites the system message's text, and extends the window.

        Checked in this order: the step (committed before: the first result, or StepConflict where its messages
        differ), the epoch (lower than the highest seen: LeaseLost; a higher one is kept), the version (moved: the
        append is rebased onto the current window, which comes back). Neither the text of the system message nor the
        times of messages count as content: a holder that takes a step over renders and stamps them anew.
        """
        ...

    async def replace_context(self, organization_id: str, new: Replacement, key: RequestKey | None) -> ContextWindow:
        """Puts a whole new window in place of the current one, storing the error returns among its ids.

        What is to be remembered is kept with it, as by EpisodeStore.commit_episode, or nothing changes. Checked in this
        order: LeaseLost, WindowMoved, NotFound (no such row), then the memories.
        """
        ...

    async def fork_context(self, organization_id: str, fork: Fork, key: RequestKey | None) -> ContextWindow:
        """Makes a window that shares another's messages under a system message of its own."""
        ...

    async def delete_context(
        self, organization_id: str, conversation_id: str, key: RequestKey | None, *, delete_messages: bool
    ) -> int:
        """Deletes a window, and where asked the messages that only it shows or wrote; returns how many."""
        ...

    async def append_messages(self, organization_id: str, batch: Batch, key: RequestKey | None) -> Appended:
        """Stores messages, all or none, and puts them at the end of a window where the batch names one."""
        ...

    async def get_messages(self, organization_id: str, ids: Sequence[str]) -> tuple[Message, ...]:
        """The messages that exist among `ids`, in the order of `ids`."""
        ...

    async def list_messages(self, organization_id: str, wanted: MessageFilter, page: PageQuery) -> Page[Message]:
        """A page, in order of sequence ids within one agent, and of storing among several."""
        ...

    async def update_message(
        self, organization_id: str, changed: Message, fields: frozenset[str], key: RequestKey | None
    ) -> Message:
        """Gives a stored message the named fields of `changed`; the windows that show it get a new version."""
        ...

    async def delete_message(self, organization_id: str, message_id: str, key: RequestKey | None) -> None:
        """Deletes a message everywhere; one that is not there is no error. FailedPrecondition for a system message."""
        ...

    async def search_words(self, scope: SearchScope, terms: Sequence[str], limit: int) -> list[tuple[str, float]]:
        """Ids and scores of the messages that have at least one of the terms, best first."""
        ...

    async def newest(self, scope: SearchScope, limit: int) -> list[Message]:
        """The searchable messages in scope that were stored last, newest first."""
        ...

    async def searchable(self, organization_id: str, ids: Sequence[str]) -> frozenset[str]:
        """Those of `ids` that are messages of the organization and may be found."""
        ...

    async def erase_agent(self, organization_id: str, agent_id: str, key: RequestKey | None) -> Erasure:
        """Forgets everything of an agent, and refuses to write it from now on. A repeat erases nothing more."""
        ...

    async def rebuild_words(self, *, only_if_empty: bool = False) -> int | None:
        """Indexes the words of every message anew; returns how many, None where there were documents already."""
        ...

    async def delete_outlived(self, before: datetime, most: int) -> int:
        """Deletes at most so many messages of a time before that one that no window shows; returns how many."""
        ...

    async def pending(self, limit: int) -> tuple[tuple[OutboxRow, ...], dict[str, tuple[str, Message]]]:
        """The oldest news for the vector index; by id, with organization, the searchable messages that they name."""
        ...

    async def note_all(self) -> int:
        """Makes every searchable message news for the vector index; returns how many."""
        ...

    async def hold_news(self, holder: str, lasts: timedelta) -> bool:
        """Takes or keeps the hold on the news, for so long; false where another holder has it."""
        ...

    async def let_go_of_news(self, holder: str) -> None:
        """Gives the hold up, if it is still this one's."""
        ...

    async def settle(self, rows: Sequence[OutboxRow], holder: str | None = None) -> bool:
        """Forgets news that the index has.

        With a holder, only if it still has the hold. Another one may have been faster otherwise, and what was brought
        into the index may have overwritten what is newer: then all of it becomes news again, and the answer is false.
        """
        ...

    async def purge_steps(self, before: datetime) -> int:
        """Forgets steps that were committed before that time, but for the newest of each conversation; how many."""
        ...
