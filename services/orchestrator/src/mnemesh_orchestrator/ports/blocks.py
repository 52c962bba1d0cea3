"""The blocks service, as the orchestrator calls it."""

from collections.abc import Sequence
from typing import Protocol

from mnemesh_orchestrator.model.core_memory import (
    AgentAuthor,
    Block,
    BlockEdit,
    CoreMemory,
    NewBlock,
)
from mnemesh_orchestrator.model.erasure import Erased


class CoreMemoryPort(Protocol):
    """Core memory."""

    async def get(
        self, agent_id: str, if_revision: int | None = None, conversation_id: str | None = None
    ) -> CoreMemory | None:
        """Returns the agent's blocks, with the isolated blocks of the conversation.

        None if `if_revision` is current.
        """
        ...

    async def isolate(
        self,
        request_id: str,
        agent_id: str,
        conversation_id: str,
        labels: Sequence[str],
        source_conversation_id: str | None = None,
        *,
        create_missing: bool = False,
    ) -> tuple[str, ...]:
        """Creates copies of the blocks under `labels` for a conversation, and returns their ids.

        The copies start with the values of the agent's blocks, or of another conversation's. With `create_missing`, a
        label that the agent does not have gets an empty block; otherwise it raises BLOCK_LABEL_NOT_FOUND.
        """
        ...

    async def release(self, request_id: str, agent_id: str, conversation_id: str) -> None:
        """Deletes the isolated blocks of a conversation."""
        ...

    async def edit(self, request_id: str, author: AgentAuthor, label: str, edit: BlockEdit) -> Block:
        """Applies one atomic edit and returns the changed block."""
        ...

    async def create(self, request_id: str, agent_id: str, block: NewBlock) -> Block:
        """Creates a block for the agent, with which it is deleted, and attaches it."""
        ...

    async def attach(self, request_id: str, agent_id: str, block_id: str) -> None:
        """Attaches an existing block to the agent."""
        ...

    async def detach(self, request_id: str, agent_id: str, label: str) -> None:
        """Detaches the block under a label from the agent. The block stays."""
        ...

    async def detach_block(self, request_id: str, agent_id: str, block_id: str) -> bool:
        """Detaches a block from the agent. The block stays. Returns False if the agent does not hold it."""
        ...

    async def relabel(self, request_id: str, block_id: str, label: str) -> Block:
        """Changes the label of a block for all its holders."""
        ...

    async def delete(self, request_id: str, block_id: str) -> bool:
        """Deletes a block and detaches it from all agents. Returns False if it does not exist."""
        ...

    async def identify(self, request_id: str, block_id: str, identity_id: str, *, attach: bool) -> bool:
        """Attaches an identity to a block, or detaches it. Returns whether that changed anything. Raises NotFound."""
        ...

    async def identities_of(self, block_id: str) -> tuple[str, ...]:
        """Returns the identities that are attached to a block. Raises NotFound."""
        ...

    async def identified(self, identity_id: str) -> tuple[str, ...]:
        """Returns the ids of the blocks that an identity is attached to, ordered by id."""
        ...

    async def describe(self, request_id: str, block_id: str, description: str) -> Block:
        """Changes the description of a block."""
        ...

    async def link(self, request_id: str, link_id: str, agent_ids: Sequence[str], source_agent_id: str) -> None:
        """Keeps the attached blocks of agents equal, and attaches those of the source to the others.

        Replaces the agents that the link has. Raises BLOCK_LABEL_TAKEN.
        """
        ...

    async def unlink(self, request_id: str, link_id: str) -> None:
        """Ends a link. The blocks stay attached."""
        ...

    async def erase_agent(
        self, request_id: str, agent_id: str, *, unshared: bool = False, together_with: Sequence[str] = ()
    ) -> Erased:
        """Erases the agent, and the blocks that were created for it or, if `unshared`, that only it holds.

        Blocks that were created for an agent of `together_with`, which is erased too, are erased like its own.
        """
        ...
