"""Creates agents and partners across the services, so that no client ever sees an incomplete agent."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import msgspec
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import InvalidArgument, MnemeshError
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, derive_id
from mnemesh_kit.secret_variables import SecretVariables
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.errors import GroupChanged
from mnemesh_orchestrator.llm.embedders import EmbedderDirectory
from mnemesh_orchestrator.llm.model_catalog import (
    ModelCatalog,
    require_served,
    require_usable_settings,
    require_usable_summaries,
)
from mnemesh_orchestrator.model.agents import AGENT_TYPES, MAX_SYSTEM_PROMPT, Agent, AgentState, require_continuation
from mnemesh_orchestrator.model.creation import (
    CREATED_FOR_AGENT,
    AgentDraft,
    Creation,
    Deletion,
    Erased,
    ErasureScope,
    PartnerCreation,
    Partnership,
    PartnerStart,
    UnfinishedAgent,
    decode_values,
    encode_values,
    filled,
    partner_group,
    partner_group_id,
    partner_of,
    prepared_draft,
    require_partner_type,
)
from mnemesh_orchestrator.model.groups import Group
from mnemesh_orchestrator.prompt.assembly import Prompts
from mnemesh_orchestrator.store.agents import AgentStore, PartnerStore
from mnemesh_orchestrator.usecases.agent_parts import AgentChanges, AgentDeletion, AgentParts
from mnemesh_orchestrator.usecases.groups import GroupService
from mnemesh_orchestrator.usecases.sagas import UNAVAILABLE, Saga, WorkOrigin, reconcile


@dataclass(frozen=True, eq=False)
class PartnerService(Saga[UnfinishedAgent, Agent]):
    """Creates partners for agents that exist. Those of new agents are created with them."""

    resource = "agent"

    store: PartnerStore
    agents: AgentStore
    changes: AgentChanges
    parts: AgentParts
    deletion: AgentDeletion
    groups: GroupService
    prompts: Prompts
    clock: Clock
    ids: IdSource

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
        return self.prompts.get(AGENT_TYPES[require_partner_type(agent.type)].prompt_key).text

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
            key: Identifies the request.
            values: See AgentChanges.values.
            if_revision: See AgentChanges.of_values.
            turns_counter: The count of turns with which a new group begins.

        Raises:
            InvalidArgument: Agents of this type have no partners.
            GroupChanged: Another request puts the agent's partners into a group.
            Unavailable: A service cannot be reached. The update is finished later; a repeat under the same key returns
                its result.
        """
        change = self._with_partner(await self.changes.of_values(caller, agent_id, values, if_revision))

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
            start = await self.store.begin(
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
        partner_id = self.ids.new("agent")
        partner = partner_of(agent, partner_id, self._system(agent), record.subject_id, self.clock.now())
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
            await self.groups.update(caller, key, start.group.id, {"agent_ids": partner_ids})
            return
        draft = partner_group(start.agent, start.idle[0], partner_group_id(start.idle[0].id), turns_counter)
        try:
            await self.groups.create(caller, key, replace(draft, agent_ids=partner_ids))
        except InvalidArgument as error:
            raise GroupChanged(error.metadata.get("resource_id", "")) from error

    @staticmethod
    def _with_partner(change: Callable[[Agent], Agent]) -> Callable[[Agent], Agent]:
        def checked(agent: Agent) -> Agent:
            require_partner_type(agent.type)
            return change(agent)

        return checked

    def origin(self, work: UnfinishedAgent) -> WorkOrigin:
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
        agent = await self.agents.get(partner.organization_id, record.agent_id)
        newest = await self.parts.newest_sequence_id(agent.id)
        group = partner_group(agent, partner, record.group_id, record.turns_counter)
        partnership = Partnership(partner, group, newest)
        await self.parts.create_partner(agent.id, partnership)
        change = await self.changes.of_values(caller, agent.id, decode_values(record.values), record.if_revision)
        done = await self.store.activate(partnership, agent.id, change)
        # None: another process finished the update, and the agent may have been changed since.
        return done if done is not None else await self.agents.get(partner.organization_id, record.agent_id)

    async def begin_undo(self, work: UnfinishedAgent, key: RequestKey | None) -> bool:
        return await self.agents.abandon(work[0].id, key, Deletion())

    async def remove_effects(self, work: UnfinishedAgent) -> None:
        await self.deletion.finish(work[0].organization_id, work[0].id, Deletion())


@dataclass(frozen=True, eq=False)
class AgentCreation(Saga[UnfinishedAgent, Agent]):
    """Creates agents, each with its partner if it has one."""

    resource = "agent"

    store: AgentStore
    parts: AgentParts
    partners: PartnerService
    deletion: AgentDeletion
    models: ModelCatalog
    embedders: EmbedderDirectory
    prompts: Prompts
    secrets: SecretVariables
    clock: Clock
    ids: IdSource

    async def create(self, caller: Principal, key: RequestKey | None, draft: AgentDraft) -> Agent:
        """Creates an agent with all its parts, and returns it. See AgentLifecycle.create."""
        draft = prepared_draft(draft)
        agent = await self._record_first(caller, draft)
        method, request_id = (key.method, key.request_id) if key is not None else (None, None)
        creation = msgspec.json.encode(Creation(replace(draft, secret_values={}), method, request_id))
        agent_id, replayed = await self.store.begin_creation(key, agent, creation)
        unfinished = await self.store.creation(caller.organization_id, agent_id) if replayed else (agent, creation)
        if unfinished is None:
            return await self.store.get(caller.organization_id, agent_id)
        return await self.run(unfinished)

    async def _record_first(self, caller: Principal, draft: AgentDraft) -> Agent:
        spec = AGENT_TYPES[draft.type]
        models = await self.models.of(caller.organization_id)
        model = draft.model or await models.default_handle()
        info = require_served(models, model, "agent.model")
        require_usable_settings(models, info, draft.model_settings, "agent.model_settings")
        require_usable_summaries(models, draft.compaction_settings, "agent.compaction_settings")
        require_usable_summaries(models, draft.memory_extraction, "agent.memory_extraction")
        await self.embedders.require(draft.embedder)
        agent_id, now = self.ids.new("agent"), self.clock.now()
        given = {item.name: getattr(draft, item.name) for item in fields(Agent)}
        return replace(
            Agent(**given),
            id=agent_id,
            organization_id=caller.organization_id,
            name=draft.name or f"agent-{agent_id[-6:]}",
            system=draft.system or self._system(draft),
            model=model,
            created_at=now,
            updated_at=now,
            default_conversation_id=derive_id("conv", agent_id),
            tags=tuple(dict.fromkeys(draft.tags)),
            message_buffer_autoclear=draft.message_buffer_autoclear or spec.forces_autoclear,
            continuation_message=require_continuation(draft.type, draft.continuation_message),
            secrets=self.secrets.sealed(agent_id, draft.secret_values),
            provenance=replace(draft.provenance, created_by_id=caller.subject_id, last_updated_by_id=caller.subject_id),
        )

    def _system(self, draft: AgentDraft) -> str:
        prompt = self.prompts.get(draft.system_prompt_key or AGENT_TYPES[draft.type].prompt_key)
        text = filled(prompt.text, draft.memory_variables)
        if len(text) > MAX_SYSTEM_PROMPT:
            raise InvalidArgument(
                f"memory_variables must keep the system prompt within {MAX_SYSTEM_PROMPT:,} characters.",
                field="memory_variables",
            )
        return text

    def origin(self, work: UnfinishedAgent) -> WorkOrigin:
        agent, creation = work[0], msgspec.json.decode(work[1], type=Creation)
        subject_id = agent.provenance.created_by_id
        return WorkOrigin(
            agent.id, agent.organization_id, subject_id, agent.created_at, creation.method, creation.request_id
        )

    async def take_effect(self, work: UnfinishedAgent) -> Agent:
        """See Saga. Creates the parts of an agent and of its partner, makes them visible, and returns the agent."""
        agent, creation = work[0], msgspec.json.decode(work[1], type=Creation)
        partnership: Partnership | None = None
        complete = await self.parts.create(agent, creation.draft)
        if agent.enable_sleeptime:
            partnership = self.partners.of_new_agent(complete, creation.draft.sleeptime_turns_counter)
            if creation.draft.initial_messages is None:
                # The first messages of a type are not part of a conversation.
                newest = await self.parts.newest_sequence_id(agent.id)
                partnership = replace(partnership, start_sequence_id=newest)
            await self.parts.create_partner(agent.id, partnership)
        if not await self.store.activate(complete, partnership):
            # Another process finished the creation, and the agent may have been changed or deleted since.
            return await self.store.get(agent.organization_id, agent.id)
        return replace(complete, state=AgentState.ACTIVE)

    async def begin_undo(self, work: UnfinishedAgent, key: RequestKey | None) -> bool:
        return await self.store.abandon(work[0].id, key, self._undo(work[0]))

    async def remove_effects(self, work: UnfinishedAgent) -> None:
        await self.deletion.finish(work[0].organization_id, work[0].id, self._undo(work[0]))

    def _undo(self, agent: Agent) -> Deletion:
        return Deletion(partner_id=self.partners.of_new_agent(agent).partner.id if agent.enable_sleeptime else None)


@dataclass(frozen=True, eq=False)
class AgentLifecycle:
    """Creates and deletes agents. Each creation and deletion survives a crash and the outage of a service."""

    store: AgentStore
    creation: AgentCreation
    partners: PartnerService
    deletion: AgentDeletion
    clock: Clock

    async def create(self, caller: Principal, key: RequestKey | None, draft: AgentDraft) -> Agent:
        """Creates an agent with all its parts, and returns it. A repeat under the same key continues the creation.

        With enable_sleeptime, the agent becomes visible together with its partner and their group.

        Raises:
            EmbedderUnknown: No service is configured for the embedder.
            ModelUnknown, NotFound: The model, the system prompt, a tool, a block or an archive does not exist. Nothing
                is kept.
            Unavailable: A service cannot be reached. The creation is finished later; a repeat under the same key
                returns its result.
        """
        return await self.creation.create(caller, key, draft)

    async def delete(self, caller: Principal, agent_id: str, scope: ErasureScope = CREATED_FOR_AGENT) -> Erased:
        """Deletes an agent, what was created for it, its partners, and what `scope` names. Returns the counts.

        A missing agent is not an error. A repeat continues the deletion with the scope of the first request.

        Raises:
            Unavailable: A service cannot be reached. The agent is invisible, and the rest is deleted later.
        """
        return await self.deletion.delete(caller, agent_id, scope)

    async def finish_all(self) -> None:
        """Finishes the creations and deletions that were interrupted."""
        await reconcile("agents", self.store.list_unfinished, self._finish, lambda item: item[0].id)

    async def _finish(self, item: UnfinishedAgent) -> None:
        agent, record = item
        if agent.state is AgentState.DELETING:
            deletion = msgspec.json.decode(record, type=Deletion) if record else Deletion()
            with as_principal(Principal(agent.organization_id, agent.provenance.created_by_id)):
                await self.deletion.finish(agent.organization_id, agent.id, deletion)
        elif agent.created_for_agent_id is None:
            await self.creation.reconcile(item)
        else:
            # A partner has a record of its own only if its agent existed before.
            await self.partners.reconcile(item)
