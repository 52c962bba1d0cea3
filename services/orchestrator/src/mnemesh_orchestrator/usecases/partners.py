"""Partners: created with their agent, or when an agent switches sleep-time on."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import InvalidArgument, MnemeshError
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, derive_id
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.errors import GroupChanged
from mnemesh_orchestrator.model.agents import AGENT_TYPES, Agent
from mnemesh_orchestrator.model.creation import (
    Deletion,
    PartnerCreation,
    Partnership,
    PartnerStart,
    UnfinishedAgent,
    decode_values,
    encode_values,
    partner_group,
    partner_group_id,
    partner_of,
    require_partner_type,
)
from mnemesh_orchestrator.model.groups import Group
from mnemesh_orchestrator.prompt.assembly import Prompts
from mnemesh_orchestrator.store.agents import AgentStore, PartnerStore
from mnemesh_orchestrator.usecases.agent_parts import AgentChanges, AgentDeletion, AgentParts
from mnemesh_orchestrator.usecases.groups import GroupService
from mnemesh_orchestrator.usecases.sagas import UNAVAILABLE, Saga, WorkOrigin


class PartnerService(Saga[UnfinishedAgent, Agent]):
    """Creates partners for agents that exist. Those of new agents are created with them."""

    resource = "agent"

    def __init__(
        self,
        store: PartnerStore,
        agents: AgentStore,
        changes: AgentChanges,
        parts: AgentParts,
        deletion: AgentDeletion,
        groups: GroupService,
        prompts: Prompts,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._store = store
        self._agents = agents
        self._changes = changes
        self._parts = parts
        self._deletion = deletion
        self._groups = groups
        self._prompts = prompts
        super().__init__(clock)
        self._ids = ids

    def of_new_agent(self, agent: Agent, turns_counter: int = 0) -> Partnership:
        """Returns the partner and the group that are created with an agent. Their ids are derived from the agent's.

        The group begins with the count of turns `turns_counter`.
        """
        partner = partner_of(
            agent,
            derive_id("agent", agent.id, "partner"),
            self._system(agent),
            agent.provenance.created_by_id,
            agent.created_at,
        )
        return Partnership(partner, partner_group(agent, partner, partner_group_id(partner.id), turns_counter))

    def _system(self, agent: Agent) -> str:
        return self._prompts.get(AGENT_TYPES[require_partner_type(agent.type)].prompt_key).text

    async def update(
        self,
        caller: Principal,
        key: RequestKey | None,
        agent_id: str,
        values: Mapping[str, Any],
        if_revision: int | None,
        turns_counter: int = 0,
    ) -> Agent:
        """Applies an update that sets enable_sleeptime, and returns the agent.

        An agent without a partner gets one first. If that fails, nothing is changed.

        Args:
            caller: The caller.
            key: Identifies the request.
            agent_id: The agent.
            values: See AgentChanges.values.
            if_revision: See AgentChanges.of_values.
            turns_counter: The count of turns with which a new group begins.

        Raises:
            InvalidArgument: Agents of this type have no partners.
            GroupChanged: Another request puts the agent's partners into a group.
            Unavailable: A service cannot be reached. The update is finished later; a repeat under the same key returns
                its result.
        """
        change = self._with_partner(await self._changes.of_values(caller, agent_id, values, if_revision))

        record = PartnerCreation(
            agent_id,
            "",
            caller.subject_id,
            encode_values(values),
            if_revision,
            None if key is None else key.method,
            None if key is None else key.request_id,
            turns_counter,
        )

        while True:
            start = await self._store.begin(
                key, caller.organization_id, agent_id, change, partial(self._new_partner, record)
            )
            if start.idle:
                await self._regroup(caller, key, start, turns_counter)
                continue
            if start.partner is None:
                return start.agent
            try:
                agent = await self.run((start.partner, start.creation))
            except UNAVAILABLE:
                raise
            except MnemeshError:
                if start.is_own:
                    raise
            else:
                if start.is_own:
                    return agent

    def _new_partner(self, record: PartnerCreation, agent: Agent, group: Group | None) -> tuple[Agent, bytes]:
        """Returns a partner and the record of its creation in the group, or in a new one."""
        partner_id = self._ids.new("agent")
        partner = partner_of(agent, partner_id, self._system(agent), record.subject_id, self._clock.now())
        group_id = partner_group_id(partner_id) if group is None else group.id
        return partner, msgspec.json.encode(replace(record, group_id=group_id))

    async def _regroup(
        self, caller: Principal, key: RequestKey | None, start: PartnerStart, turns_counter: int
    ) -> None:
        """Puts partners whose group was deleted into a group again. A repeat under the same key continues it.

        Raises:
            GroupChanged: Another request does the same.
        """
        key = None if key is None else replace(key, request_id=f"{key.request_id}/group")
        partner_ids = tuple(partner.id for partner in start.idle)
        if start.group is not None:
            await self._groups.update(caller, key, start.group.id, {"agent_ids": partner_ids})
            return
        draft = partner_group(start.agent, start.idle[0], partner_group_id(start.idle[0].id), turns_counter)
        try:
            await self._groups.create(caller, key, replace(draft, agent_ids=partner_ids))
        except InvalidArgument as error:
            raise GroupChanged(error.metadata.get("resource_id", "")) from error

    @staticmethod
    def _with_partner(change: Callable[[Agent], Agent]) -> Callable[[Agent], Agent]:
        def checked(agent: Agent) -> Agent:
            require_partner_type(agent.type)
            return change(agent)

        return checked

    def origin(self, work: UnfinishedAgent) -> WorkOrigin:
        """See Saga."""
        partner, creation = work
        record = msgspec.json.decode(creation, type=PartnerCreation)
        return WorkOrigin(
            partner.id,
            partner.organization_id,
            record.subject_id,
            partner.created_at,
            record.method,
            record.request_id,
        )

    async def take_effect(self, work: UnfinishedAgent) -> Agent:
        """See Saga. Completes an update from the record of its partner, and returns the agent."""
        partner, creation = work
        record = msgspec.json.decode(creation, type=PartnerCreation)
        caller = Principal(partner.organization_id, record.subject_id)
        agent = await self._agents.get(partner.organization_id, record.agent_id)
        newest = await self._parts.newest_sequence_id(agent.id)
        group = partner_group(agent, partner, record.group_id, record.turns_counter)
        partnership = Partnership(partner, group, newest)
        await self._parts.create_partner(agent.id, partnership)
        change = await self._changes.of_values(caller, agent.id, decode_values(record.values), record.if_revision)
        done = await self._store.activate(partnership, agent.id, change)
        # None: another process finished the update, and the agent may have been changed since.
        return done if done is not None else await self._agents.get(partner.organization_id, record.agent_id)

    async def begin_undo(self, work: UnfinishedAgent, key: RequestKey | None) -> bool:
        """See Saga."""
        return await self._agents.abandon(work[0].id, key, Deletion())

    async def remove_effects(self, work: UnfinishedAgent) -> None:
        """See Saga."""
        await self._deletion.finish(work[0].organization_id, work[0].id, Deletion())
