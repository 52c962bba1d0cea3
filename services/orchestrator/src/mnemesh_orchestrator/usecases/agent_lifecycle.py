"""Creates and deletes agents, and finishes what was interrupted."""

from datetime import timedelta

import msgspec
import structlog
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import Internal
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.principal import Principal, as_principal

from mnemesh_orchestrator.model.agents import Agent, AgentState
from mnemesh_orchestrator.model.creation import AgentDraft
from mnemesh_orchestrator.model.erasure import CREATED_FOR_AGENT, Deletion, Erased, ErasureScope
from mnemesh_orchestrator.store.base import AgentStore
from mnemesh_orchestrator.usecases.agent_creation import AgentCreation
from mnemesh_orchestrator.usecases.agent_deletion import AgentDeletion
from mnemesh_orchestrator.usecases.partners import PartnerService
from mnemesh_orchestrator.usecases.reconciliation import GIVE_UP, reconcile

GRACE = timedelta(seconds=60)
"""A younger creation may still run in another process."""

_log = structlog.get_logger("mnemesh.reconciliation")


class AgentLifecycle:
    """Creates and deletes agents. Each creation and deletion survives a crash and the outage of a service."""

    def __init__(
        self,
        store: AgentStore,
        creation: AgentCreation,
        partners: PartnerService,
        deletion: AgentDeletion,
        clock: Clock,
    ) -> None:
        self._store = store
        self._creation = creation
        self._partners = partners
        self._deletion = deletion
        self._clock = clock

    async def create(self, caller: Principal, key: RequestKey | None, draft: AgentDraft) -> Agent:
        """Creates an agent with all its parts, and returns it. A repeat under the same key continues the creation.

        With enable_sleeptime, the agent becomes visible together with its partner and their group.

        Raises:
            InvalidArgument: A field of the draft breaks its rule.
            EmbedderUnknown: No service is configured for the embedder.
            ModelUnknown, NotFound: The model, the system prompt, a tool, a block or an archive does not exist. Nothing
                is kept.
            Unavailable: A service cannot be reached. The creation is finished later; a repeat under the same key
                returns its result.
        """
        return await self._creation.create(caller, key, draft)

    async def delete(self, caller: Principal, agent_id: str, scope: ErasureScope = CREATED_FOR_AGENT) -> Erased:
        """Deletes an agent, what was created for it, its partners, and what `scope` names. Returns the counts.

        A missing agent is no error. A repeat continues the deletion with the scope of the first request.

        Raises:
            Unavailable: A service cannot be reached. The agent is invisible, and the rest is deleted later.
        """
        return await self._deletion.delete(caller, agent_id, scope)

    async def finish_all(self) -> None:
        """Finishes the creations and deletions that were interrupted."""
        await reconcile("agents", self._store.unfinished, self._finish, lambda item: item[0].id)

    async def _finish(self, item: tuple[Agent, bytes]) -> None:
        agent, record = item
        with as_principal(Principal(agent.organization_id, agent.provenance.created_by_id)):
            if agent.state is AgentState.DELETING:
                deletion = msgspec.json.decode(record, type=Deletion) if record else Deletion()
                await self._deletion.finish(agent.organization_id, agent.id, deletion)
            elif agent.created_at < self._clock.now() - GRACE:
                # A partner has a record of its own only if its agent existed before.
                creation = self._creation if agent.created_for_agent_id is None else self._partners
                try:
                    await creation.finish(agent, record)
                except Internal as error:
                    if agent.created_at > self._clock.now() - GIVE_UP:
                        raise
                    _log.error("creation_undone", resource="agent", id=agent.id, error=error.message)
                    await creation.undo(agent, record)
