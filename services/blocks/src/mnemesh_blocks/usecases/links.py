"""The use cases of links: sets of agents whose attached blocks are kept equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.principal import Principal

from mnemesh_blocks.errors import AgentLinked
from mnemesh_blocks.model.core_memory import require_link, require_link_id
from mnemesh_blocks.store.base import BlockStore, BlockTransaction
from mnemesh_blocks.usecases import changes, lookups


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
                current = lookups.require_not_erased(tx, agent_id).link_id
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
        await self._store.write_once(
            caller.organization_id, key, work, result_ids=lambda _: [], replay=lambda _tx, _ids: None
        )
