"""The blocks service, as the orchestrator calls it."""

from collections.abc import Sequence
from typing import Protocol

from mnemesh_orchestrator.model.core_memory import (
    AgentAuthor,
    Block,
    BlockEdit,
    CoreMemory,
)
from mnemesh_orchestrator.model.erasure import Erased


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
