"""The use cases of core memory: which agent holds which block, edits, blocks of one conversation, and linked agents."""

from collections.abc import Callable, Sequence

from mnemesh_kit.call_context import Principal
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, require_id
from mnemesh_kit.text import require_no_nul
from mnemesh_kit.time import Clock
from mnemesh_types.blocks import Author, Block, CoreMemory, OwnerAuthor

from mnemesh_blocks.errors import AgentLinked, BlockLabelNotFound, ConversationNotFound
from mnemesh_blocks.model.blocks import (
    DEFAULT_LIMIT,
    copy_block,
    require_revision,
    require_valid,
    require_valid_author,
    require_writable,
)
from mnemesh_blocks.model.edits import (
    Edit,
    EditedBlock,
    require_agents,
    require_labels,
    require_link,
    require_link_id,
    with_conversation,
)
from mnemesh_blocks.store.blocks import BlockStore, BlockTransaction, Recorded
from mnemesh_blocks.usecases import changes


class CoreMemoryService:
    """Reads and changes the core memories of the caller's organization."""

    def __init__(self, store: BlockStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def attach_block(self, caller: Principal, agent_id: str, block_id: str, key: RequestKey | None) -> int:
        """Attaches the block to the agent and to those that it is linked with; returns the revision of its core memory.

        Raises:
            BlockNotFound: The organization has no such block.
            BlockLabelTaken: One of the agents holds another block under the same label.
            AgentErased: The agent was erased.
        """
        require_id(agent_id, "agent", "agent_id")
        require_id(block_id, "block", "block_id")

        def attach(tx: BlockTransaction) -> int:
            changes.attach_block(tx, agent_id, changes.get_block(tx, block_id))
            return tx.get_core_memory_revision(agent_id)

        return await self._store.write_once(caller.organization_id, key, attach, changes.NUMBER)

    async def detach_block(
        self,
        caller: Principal,
        agent_id: str,
        key: RequestKey | None,
        *,
        block_id: str | None = None,
        label: str | None = None,
    ) -> tuple[str, int]:
        """Detaches the block named by `block_id`, or else by `label`, from the agent and from those it is linked with.

        Returns:
            The block's id and the revision of the agent's core memory.

        Raises:
            BlockNotHeld: The agent does not hold the block `block_id`.
            BlockLabelNotFound: The agent holds no block under `label`.
        """
        require_id(agent_id, "agent", "agent_id")
        if block_id is not None:
            require_id(block_id, "block", "block_id")
        label = require_no_nul(label or "", "label")

        def detach(tx: BlockTransaction) -> tuple[str, int]:
            detached = block_id if block_id is not None else changes.get_held_block(tx, agent_id, label).id
            changes.detach_block(tx, agent_id, detached)
            return detached, tx.get_core_memory_revision(agent_id)

        return await self._store.write_once(
            caller.organization_id,
            key,
            detach,
            Recorded(lambda result: [result[0], str(result[1])], lambda _tx, ids: (ids[0], int(ids[1]))),
        )

    async def get_core_memory(
        self, caller: Principal, agent_id: str, if_revision: int | None = None, conversation_id: str | None = None
    ) -> CoreMemory | None:
        """Returns the agent's core memory, or None if it is still at `if_revision`.

        The blocks of the conversation, if it has any, replace the agent's blocks with the same label.
        """
        require_id(agent_id, "agent", "agent_id")
        if conversation_id is not None:
            require_id(conversation_id, "conv", "conversation_id")

        def get(tx: BlockTransaction) -> CoreMemory | None:
            if conversation_id is None or not tx.is_conversation_of(conversation_id, agent_id):
                return tx.get_core_memory(agent_id, if_revision)
            shared, own = tx.get_core_memories([agent_id, conversation_id])
            memory = with_conversation(shared, own)
            return None if memory.revision == if_revision else memory

        return await self._store.read(caller.organization_id, get)

    async def batch_get_core_memory(self, caller: Principal, agent_ids: Sequence[str]) -> Sequence[CoreMemory]:
        """Returns the core memories of several agents, in the order of `agent_ids`."""
        for agent_id in require_agents(agent_ids):
            require_id(agent_id, "agent", "agent_ids")
        return await self._store.read(caller.organization_id, lambda tx: tx.get_core_memories(agent_ids))

    async def edit_block(
        self,
        caller: Principal,
        agent_id: str,
        label: str,
        edit: Edit,
        author: Author,
        key: RequestKey | None,
        conversation_id: str | None = None,
    ) -> EditedBlock:
        """Applies one edit to the block under `label`: the conversation's, if it has one, or else the agent's.

        An edit without a base revision applies to the current value, so that concurrent edits are all kept.

        Raises:
            BlockLabelNotFound: The agent holds no such block.
            BlockReadOnly: The author is an agent and the block is read-only.
            BlockRevisionMismatch: The block is not at the base revision of the edit.
            BlockLimitExceeded: The new value is longer than the limit.
            MnemeshError: The edit does not apply; see `model/edits.py`.
        """
        require_id(agent_id, "agent", "agent_id")
        if conversation_id is not None:
            require_id(conversation_id, "conv", "conversation_id")
        require_no_nul(label, "label")
        require_valid_author(author)

        def apply(tx: BlockTransaction) -> EditedBlock:
            block = require_writable(changes.get_held_block(tx, agent_id, label, conversation_id), author)
            require_revision(block, edit.base_revision)
            value = edit.apply(block.value, label)
            edited = changes.update_block(tx, block, edit.operation, author, self._clock.now(), value=value)
            if conversation_id is None:  # then the agent holds the block
                return EditedBlock(edited, tx.get_revision_before(agent_id) + 1)
            own = tx.get_core_memory_revision(conversation_id)
            return EditedBlock(edited, tx.get_core_memory_revision(agent_id) + own)

        def ask(tx: BlockTransaction) -> None:
            if conversation_id is None:
                tx.ask_held_block(agent_id, label)
                tx.ask_holder(agent_id)

        return await self._store.write_once(
            caller.organization_id,
            key,
            apply,
            Recorded(
                lambda edited: [edited.block.id, str(edited.core_memory_revision)],
                lambda tx, ids: EditedBlock(changes.get_block(tx, ids[0]), int(ids[1])),
            ),
            ask=ask,
        )

    async def erase_agent(
        self,
        caller: Principal,
        agent_id: str,
        key: RequestKey | None,
        *,
        with_unshared_blocks: bool,
        together_with: Sequence[str] = (),
    ) -> tuple[int, int]:
        """Erases an agent's core memory and those of its conversations, and refuses later writes for them.

        The blocks that were created for the agent are deleted, unless another agent holds them.

        Args:
            caller: The caller.
            agent_id: The agent.
            key: The idempotency key of the request.
            with_unshared_blocks: Also deletes the agent's blocks that were not created for it and that have no other
                holder. The blocks of conversations are always deleted.
            together_with: Other agents that are erased too: blocks that were created for them are deleted as well.

        Returns:
            The number of the agent's blocks that were detached, and the number of those that were deleted.
        """
        require_id(agent_id, "agent", "agent_id")
        for other_id in require_agents(together_with, "together_with_agent_ids"):
            require_id(other_id, "agent", "together_with_agent_ids")

        def erase(tx: BlockTransaction) -> tuple[int, int]:
            for conversation_id in tx.list_conversations(agent_id):
                changes.erase_conversation(tx, conversation_id)
            return changes.erase_agent(tx, agent_id, together_with, with_unshared_blocks=with_unshared_blocks)

        return await self._store.write_once(
            caller.organization_id,
            key,
            erase,
            Recorded(lambda counts: [str(count) for count in counts], lambda _tx, ids: (int(ids[0]), int(ids[1]))),
        )


class ConversationBlockService:
    """Isolates and releases the blocks of conversations."""

    def __init__(self, store: BlockStore, clock: Clock, ids: IdSource) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids

    async def isolate_blocks(
        self,
        caller: Principal,
        agent_id: str,
        conversation_id: str,
        labels: Sequence[str],
        source_conversation_id: str | None,
        key: RequestKey | None,
        *,
        create_missing: bool = False,
    ) -> Sequence[Block]:
        """Copies the blocks under `labels` for one conversation; keeps the copies that the conversation has already.

        Args:
            caller: The owner of the copies.
            agent_id: The agent.
            conversation_id: The conversation that receives the copies.
            labels: The labels of the blocks to copy.
            source_conversation_id: A conversation of the agent whose blocks are copied where it has any.
            key: The idempotency key of the request.
            create_missing: Whether a label under which the agent holds no block gets an empty one.

        Returns:
            All blocks of the conversation.

        Raises:
            BlockLabelNotFound: The agent holds no such block.
            ConversationNotFound: The conversation belongs to another agent.
            AgentErased: The agent was erased, or the conversation's blocks were released.
        """
        require_id(agent_id, "agent", "agent_id")
        require_id(conversation_id, "conv", "conversation_id")
        if source_conversation_id is not None:
            require_id(source_conversation_id, "conv", "source_conversation_id")
        require_labels(labels)
        author, now = OwnerAuthor(caller.subject_id), self._clock.now()

        def isolate(tx: BlockTransaction) -> Sequence[Block]:
            for holder_id in (agent_id, conversation_id):
                changes.require_not_erased(tx, holder_id)
            if not tx.register_conversation(conversation_id, agent_id):
                raise ConversationNotFound(conversation_id)
            for label in dict.fromkeys(labels):
                if tx.get_held_block(conversation_id, label) is None:
                    source = changes.find_held_block(tx, agent_id, label, source_conversation_id)
                    if source is None and not create_missing:
                        raise BlockLabelNotFound(label, tx.list_labels(agent_id))
                    source = source or require_valid(Block(label=label, limit=DEFAULT_LIMIT))
                    copy = copy_block(source, self._ids.new("block"), author.subject_id, now)
                    changes.insert_block(tx, copy, author)
                    tx.attach(conversation_id, copy)
            return tx.get_core_memories([conversation_id])[0].blocks

        return await self._store.write_once(
            caller.organization_id,
            key,
            isolate,
            Recorded(
                lambda blocks: [block.id for block in blocks],
                lambda tx, ids: [changes.get_block(tx, block_id) for block_id in ids],
            ),
        )

    async def release_blocks(
        self, caller: Principal, agent_id: str, conversation_id: str, key: RequestKey | None
    ) -> int:
        """Deletes the blocks of a conversation and refuses later writes to them; returns the number of blocks."""
        require_id(agent_id, "agent", "agent_id")
        require_id(conversation_id, "conv", "conversation_id")

        def release(tx: BlockTransaction) -> int:
            if not tx.is_conversation_of(conversation_id, agent_id):
                return 0
            return changes.erase_conversation(tx, conversation_id)

        return await self._store.write_once(caller.organization_id, key, release, changes.NUMBER)


class LinkService:
    """Creates and ends links between agents."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store

    async def link_agents(
        self, caller: Principal, link_id: str, agent_ids: Sequence[str], source_agent_id: str, key: RequestKey | None
    ) -> None:
        """Links agents, in place of those that the link has, and attaches the blocks of the source to all of them.

        Raises:
            InvalidArgument: The link or its agents break a rule.
            AgentErased: One of the agents was erased.
            AgentLinked: One of the agents is in another link, with an agent that is not erased.
            BlockLabelTaken: One of the agents holds another block under the label of a block of the source.
        """
        require_link_id(link_id)
        require_link(agent_ids, source_agent_id)

        def link(tx: BlockTransaction) -> None:
            for agent_id in set(tx.list_linked_agents(link_id)).difference(agent_ids):
                tx.link(agent_id, None)
            for agent_id in sorted(agent_ids):
                current = changes.require_not_erased(tx, agent_id).link_id
                # The others of a link may have been erased. The link then has no effect.
                if current is not None and current != link_id and len(tx.list_linked_agents(current)) > 1:
                    raise AgentLinked(agent_id, current)
                tx.link(agent_id, link_id)
            for block in tx.get_core_memories([source_agent_id])[0].blocks:
                changes.attach_block(tx, source_agent_id, block)

        await self._write(caller, key, link)

    async def unlink_agents(self, caller: Principal, link_id: str, key: RequestKey | None) -> None:
        """Ends a link. The blocks stay attached. Succeeds if there is no such link."""
        require_link_id(link_id)

        def unlink(tx: BlockTransaction) -> None:
            for agent_id in tx.list_linked_agents(link_id):
                tx.link(agent_id, None)

        await self._write(caller, key, unlink)

    async def _write(self, caller: Principal, key: RequestKey | None, work: Callable[[BlockTransaction], None]) -> None:
        await self._store.write_once(caller.organization_id, key, work, changes.NOTHING)
