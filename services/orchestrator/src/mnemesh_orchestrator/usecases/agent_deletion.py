"""Deletes agents with their partners, and removes those whose creation failed."""

from contextlib import suppress
from dataclasses import replace

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.principal import Principal

from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.erasure import Deletion, Erased, ErasureScope
from mnemesh_orchestrator.model.groups import GroupState
from mnemesh_orchestrator.runs.worker import RunWorker
from mnemesh_orchestrator.store.base import AgentStore
from mnemesh_orchestrator.usecases.agent_parts import AgentParts
from mnemesh_orchestrator.usecases.group_changes import GroupChanges
from mnemesh_orchestrator.usecases.reconciliation import UNAVAILABLE


class AgentDeletion:
    """Deletes agents. Each deletion survives a crash and the outage of a service."""

    def __init__(self, store: AgentStore, parts: AgentParts, groups: GroupChanges, worker: RunWorker) -> None:
        self._store = store
        self._parts = parts
        self._groups = groups
        self._worker = worker

    async def delete(self, caller: Principal, agent_id: str, scope: ErasureScope) -> Erased:
        """Deletes an agent and its partners. Returns the counts. See AgentLifecycle.delete."""
        start, erased = await self._store.begin_deletion(caller.organization_id, agent_id, scope), Erased()
        for each, deletion in start.agents:
            erased += await self.finish(caller.organization_id, each, deletion) + Erased(agents=1)
        # The runs of the deleted agents are gone, so that only those of the other members are cancelled.
        for group_id in start.group_ids:
            async with self._groups.lock(caller.organization_id, group_id):
                await self._groups.finish_pending(caller.organization_id, group_id, states=(GroupState.DELETING,))
        return erased

    async def finish(self, organization_id: str, agent_id: str, deletion: Deletion) -> Erased:
        """Erases the parts of a DELETING agent, and removes it. Returns the counts. Raises Unavailable."""
        unfinished = await self._worker.stop_runs_of(organization_id, agent_id)
        try:
            erased = Erased()
            if deletion.partner_id is not None:
                erased += await self._parts.erase(deletion.partner_id, Deletion(together_with=(agent_id,)))
                deletion = replace(deletion, together_with=(deletion.partner_id,))
            erased += await self._parts.erase(agent_id, deletion)
            await self._store.remove(agent_id)
        finally:
            # Clients may have reopened these streams after the runs were stopped.
            self._worker.end_streams(unfinished)
        return erased

    async def undo(self, agent: Agent, key: RequestKey | None, deletion: Deletion = Deletion()) -> None:  # noqa: B008
        """Removes a CREATING agent and releases the key of its creation, unless another process finished it.

        Reconciliation finishes what an outage interrupts.
        """
        if await self._store.abandon(agent.id, key, deletion):
            with suppress(*UNAVAILABLE):
                await self.finish(agent.organization_id, agent.id, deletion)
