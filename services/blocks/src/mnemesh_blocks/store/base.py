"""The contract of block stores: `BlockStore` runs units of work, and `BlockTransaction` is what each works on.

Example:
    ```python
    def append(tx: BlockTransaction) -> Block:
        block = tx.get_held_block(agent_id, "notes")
        after = replace(block, value=f"{block.value}\\nmilk", revision=block.revision + 1)
        tx.update_block(after, block)
        return after

    block = await store.write(organization_id, append)
    ```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_blocks.model.blocks import Block, BlockFilter, BlockOrder, BlockRevision
from mnemesh_blocks.model.core_memory import CoreMemory, Holder

T = TypeVar("T")


class BlockTransaction(Protocol):
    """One transaction on the blocks of one organization. Rows of other organizations are not visible in it.

    A holder is an agent, or a conversation that has blocks: methods that take an `agent_id` take the id of either,
    except where they say otherwise. Each holder has a core-memory revision. "Touching" a holder increments it.
    """

    def get_block(self, block_id: str) -> Block | None:
        """Returns the block with this id, or None."""
        ...

    def get_held_block(self, agent_id: str, label: str) -> Block | None:
        """Returns the block that the holder holds under this label, or None."""
        ...

    def list_labels(self, agent_id: str) -> Sequence[str]:
        """Returns the labels that the holder holds, in the order of attachment."""
        ...

    def insert_block(self, block: Block) -> None:
        """Stores a new block without holders."""
        ...

    def update_block(self, block: Block, before: Block) -> None:
        """Overwrites a block and touches every holder. A new label applies to all holders.

        Args:
            block: The new state.
            before: The state that was read in this transaction.
        """
        ...

    def delete_block(self, block_id: str) -> bool:
        """Deletes a block with its revisions, detaches it and touches its holders; returns False if there is none."""
        ...

    def list_blocks(self, filter_: BlockFilter, order: BlockOrder, page: PageQuery) -> Page[Block]:
        """Returns a page of the blocks that match the filter, sorted by `order` and then by id."""
        ...

    def count_blocks(self, filter_: BlockFilter) -> int:
        """Returns the number of blocks that match the filter."""
        ...

    def insert_revision(self, revision: BlockRevision) -> None:
        """Records one change of a block."""
        ...

    def get_revision(self, block_id: str, revision: int) -> BlockRevision | None:
        """Returns one recorded change, or None."""
        ...

    def get_revision_at(self, block_id: str, at: datetime) -> BlockRevision | None:
        """Returns the newest change that is not later than `at`, or None."""
        ...

    def get_newest_child(self, block_id: str, parent: int) -> BlockRevision | None:
        """Returns the newest change that replaced the value of revision `parent`, or None."""
        ...

    def list_revisions(self, block_id: str, page: PageQuery, *, with_previous: bool) -> Page[BlockRevision]:
        """Returns a page of the changes of a block, sorted by revision number.

        Args:
            block_id: The block.
            page: The page.
            with_previous: Sets `previous_value` of each change.
        """
        ...

    def attach(self, agent_id: str, block: Block) -> None:
        """Attaches the block to the holder, after its other blocks, and touches the holder.

        The caller has checked that the holder is not erased and holds no block under this label.
        """
        ...

    def detach(self, agent_id: str, block_id: str) -> bool:
        """Detaches the block from the holder and touches the holder; returns False if it did not hold the block."""
        ...

    def list_holders(self, block_id: str, page: PageQuery) -> Page[str]:
        """Returns a page of the ids of the agents that hold the block, sorted; conversations are left out."""
        ...

    def find_label_conflict(self, block_id: str, label: str) -> str | None:
        """Returns the id of a holder of the block that holds another block under `label`, or None."""
        ...

    def get_core_memory(self, agent_id: str, if_revision: int | None = None) -> CoreMemory | None:
        """Returns the holder's core memory, or None if its revision is still `if_revision`.

        A holder that never held a block has an empty core memory of revision 0. Runs one statement.
        """
        ...

    def get_core_memories(self, agent_ids: Sequence[str]) -> Sequence[CoreMemory]:
        """Returns the core memories of several holders in the order of `agent_ids`. Runs one statement."""
        ...

    def get_core_memory_revision(self, agent_id: str) -> int:
        """Returns the revision of the holder's core memory: 0 if it never held a block."""
        ...

    def register_conversation(self, conversation_id: str, agent_id: str) -> bool:
        """Lets a conversation of the agent hold blocks; returns False if its id belongs to another holder."""
        ...

    def is_conversation_of(self, conversation_id: str, agent_id: str) -> bool:
        """Returns whether the id is registered as a conversation of the agent."""
        ...

    def get_holder(self, agent_id: str) -> Holder:
        """Returns whether the holder has a tombstone, and its link."""
        ...

    def link(self, agent_id: str, link_id: str | None) -> None:
        """Sets or clears the link of an agent that is not erased."""
        ...

    def list_linked_agents(self, link_id: str) -> Sequence[str]:
        """Returns the ids of the agents of a link, sorted."""
        ...

    def list_conversations(self, agent_id: str) -> Sequence[str]:
        """Returns the ids of the agent's registered conversations that are not erased."""
        ...

    def detach_all(self, agent_id: str) -> Sequence[str]:
        """Detaches all blocks of the holder, without touching it, and returns their ids."""
        ...

    def delete_unheld_blocks(self, block_ids: Sequence[str], created_for: Sequence[str] | None) -> int:
        """Deletes those of the blocks that have no holder, or of these only the ones that were created for the agents.

        Returns the number of deleted blocks.
        """
        ...

    def mark_erased(self, agent_id: str) -> None:
        """Stores a tombstone for the holder, removes it from its link, and touches it."""
        ...


class BlockStore(Protocol):
    """A transactional store of blocks.

    Transactions are serializable: everything that a unit of work has read is still true when it commits. The store
    repeats a unit of work that conflicts with another one, so the work must have no effect outside its transaction.
    """

    async def read(self, organization_id: str, work: Callable[[BlockTransaction], T]) -> T:
        """Runs `work` on one consistent snapshot and returns its result."""
        ...

    async def write(self, organization_id: str, work: Callable[[BlockTransaction], T]) -> T:
        """Runs `work` in a transaction and returns its result. An exception rolls the transaction back."""
        ...

    async def write_once(
        self,
        organization_id: str,
        key: RequestKey | None,
        work: Callable[[BlockTransaction], T],
        *,
        result_ids: Callable[[T], Sequence[str]],
        replay: Callable[[BlockTransaction, Sequence[str]], T],
    ) -> T:
        """Runs `work` like `write`, unless the request has taken effect before.

        Args:
            organization_id: The organization of the blocks.
            key: The idempotency key of the request; None always runs `work`.
            work: The effect, which returns the result of the request.
            result_ids: Returns the strings to record for a result.
            replay: Returns the result of a repeated request from the recorded strings.

        Raises:
            RequestIdReused: The request id was used before with other content.
        """
        ...
