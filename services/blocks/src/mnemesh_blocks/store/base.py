"""The contract of block stores: a unit of work per use case, and what can be asked of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol, TypeVar

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_blocks.model.blocks import Block, BlockRevision, CoreMemory

T = TypeVar("T")


class BlockOrder(StrEnum):
    """What lists of blocks can be sorted by."""

    CREATE_TIME = "create_time"
    UPDATE_TIME = "update_time"
    LABEL = "label"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFilter:
    """Which blocks a list or a count is about; all that is given must hold. Searches ignore the case of letters."""

    block_ids: tuple[str, ...] = ()
    label: str | None = None
    name: str | None = None
    label_search: str | None = None
    description_search: str | None = None
    value_search: str | None = None
    is_template: bool | None = None
    hidden: bool | None = None
    identity_id: str | None = None
    agent_id: str | None = None
    tags_any: tuple[str, ...] = ()
    tags_all: tuple[str, ...] = ()
    agents_more_than: int | None = None
    agents_fewer_than: int | None = None
    agents_exactly: int | None = None
    project_id: str | None = None
    template_id: str | None = None


class BlockTransaction(Protocol):
    """One transaction on the blocks of one organization; another organization's rows do not exist in it."""

    def block(self, block_id: str) -> Block | None:
        """The block with this id."""
        ...

    def held_block(self, agent_id: str, label: str) -> Block | None:
        """The block that the agent holds under this label."""
        ...

    def labels(self, agent_id: str) -> Sequence[str]:
        """The labels that the agent holds, in the order of attachment."""
        ...

    def insert_block(self, block: Block) -> None:
        """Stores a new block; nobody holds it yet."""
        ...

    def update_block(self, block: Block, before: Block) -> None:
        """Overwrites `before`, as it was read in this transaction, with `block`, and touches every holder.

        A new label is the one it is held under from now on.
        """
        ...

    def delete_block(self, block_id: str) -> bool:
        """Deletes a block with its revisions, detaches it and touches its holders; False if there is none."""
        ...

    def list_blocks(self, filter: BlockFilter, order: BlockOrder, page: PageQuery) -> Page[Block]:  # noqa: A002
        """A page of the blocks that the filter lets through."""
        ...

    def count_blocks(self, filter: BlockFilter) -> int:  # noqa: A002
        """How many blocks the filter lets through."""
        ...

    def insert_revision(self, revision: BlockRevision) -> None:
        """Records one change of a block."""
        ...

    def revision(self, block_id: str, revision: int) -> BlockRevision | None:
        """One recorded change."""
        ...

    def revision_at(self, block_id: str, at: datetime) -> BlockRevision | None:
        """The newest change that is not later than `at`."""
        ...

    def newest_child(self, block_id: str, parent: int) -> BlockRevision | None:
        """The newest change that replaced the value of revision `parent`."""
        ...

    def list_revisions(self, block_id: str, page: PageQuery, *, with_previous: bool) -> Page[BlockRevision]:
        """A page of the changes of a block by revision number; with the value before each if asked for."""
        ...

    def attach(self, agent_id: str, block: Block) -> None:
        """Makes the agent, which is not erased, hold the block, and touches the agent."""
        ...

    def detach(self, agent_id: str, block_id: str) -> bool:
        """Ends the holding and touches the agent; False if there is none."""
        ...

    def list_holders(self, block_id: str, page: PageQuery) -> Page[str]:
        """A page of the ids of the agents that hold the block."""
        ...

    def label_conflict(self, block_id: str, label: str) -> str | None:
        """A holder of the block that holds another block under `label`, if there is one."""
        ...

    def core_memory(self, agent_id: str, if_revision: int | None = None) -> CoreMemory | None:
        """The agent's core memory in one statement; None where its revision is still `if_revision`."""
        ...

    def core_memories(self, agent_ids: Sequence[str]) -> Sequence[CoreMemory]:
        """The core memories of several agents in one statement, in the order asked for."""
        ...

    def core_revision(self, agent_id: str) -> int:
        """The revision of the agent's core memory: 0 before it ever held a block."""
        ...

    def adopt(self, conversation_id: str, agent_id: str) -> bool:
        """Lets a conversation of the agent hold blocks; False where it is known as something else."""
        ...

    def is_conversation_of(self, conversation_id: str, agent_id: str) -> bool:
        """Whether it is a conversation of the agent that holds blocks, or held some."""
        ...

    def is_erased(self, agent_id: str) -> bool:
        """Whether the agent left a tombstone."""
        ...

    def erase_agent(self, agent_id: str, *, with_unshared_blocks: bool) -> tuple[int, int]:
        """Detaches everything and leaves a tombstone; returns how many blocks were detached and deleted.

        What conversations of the agent hold for themselves goes along. A conversation is erased in the same way.
        """
        ...


class BlockStore(Protocol):
    """Where blocks are kept.

    Transactions are serializable: what a unit of work has read is still true when it commits. It may be run more than
    once, so it must do nothing but use its transaction.
    """

    async def read(self, organization_id: str, work: Callable[[BlockTransaction], T]) -> T:
        """Runs `work` on one consistent snapshot."""
        ...

    async def write(self, organization_id: str, work: Callable[[BlockTransaction], T]) -> T:
        """Runs `work` in a transaction of its own; an exception undoes all of it."""
        ...

    async def write_once(
        self,
        key: RequestKey | None,
        organization_id: str,
        work: Callable[[BlockTransaction], T],
        *,
        result: Callable[[T], Sequence[str]],
        again: Callable[[BlockTransaction, Sequence[str]], T],
    ) -> T:
        """Runs `work` like `write`, unless the request has taken effect before.

        Args:
            key: identifies the request; None runs `work` always.
            organization_id: whose blocks.
            work: the effect and its answer.
            result: what to remember of the answer.
            again: makes the answer of a repeated request from what was remembered.

        Raises:
            RequestIdReused: the request id came with other content.
        """
        ...
