"""Making and unmaking agents across the tiers, so that nobody ever sees half of one."""

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import msgspec
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    MnemeshError,
    NotFound,
    RequestIdReused,
    Unavailable,
)
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, derive_id
from mnemesh_kit.principal import Principal, as_principal

from mnemesh_orchestrator.builtin.schemas import BUILTIN_SCHEMAS
from mnemesh_orchestrator.compaction.summarizers import require_summary_model
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.loop.context_builder import ContextBuilder
from mnemesh_orchestrator.loop.rules import RulesSolver
from mnemesh_orchestrator.model.agent_types import (
    AGENT_TYPES,
    base_rules,
    base_rules_by_default,
    require_continuation,
    shows_line_numbers,
)
from mnemesh_orchestrator.model.agents import Agent, AgentState, AttachedTool
from mnemesh_orchestrator.model.archival import ArchivalSummary
from mnemesh_orchestrator.model.core_memory import Block
from mnemesh_orchestrator.model.creation import AgentDraft, Creation, filled
from mnemesh_orchestrator.model.custom_tools import CustomTool
from mnemesh_orchestrator.model.erasure import Erased
from mnemesh_orchestrator.ports import Services
from mnemesh_orchestrator.prompt.assembly import memory_section
from mnemesh_orchestrator.prompt.prompts import LONGEST_PROMPT, Prompts
from mnemesh_orchestrator.runs.worker import RunWorker
from mnemesh_orchestrator.store.base import AgentStore
from mnemesh_orchestrator.usecases.first_messages import FirstWindow
from mnemesh_orchestrator.usecases.reconciliation import each
from mnemesh_orchestrator.usecases.tool_attachments import attachment, with_episodic_search

GRACE = timedelta(seconds=60)
"""A creation that is younger may still be under way elsewhere."""

_AWAY = (Unavailable, DeadlineExceeded, Internal)


class AgentLifecycle:
    """Creations and deletions, each of which survives a crash of this process and the absence of a tier."""

    def __init__(
        self,
        store: AgentStore,
        tiers: Services,
        models: ModelCatalog,
        prompts: Prompts,
        context: ContextBuilder,
        worker: RunWorker,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._store = store
        self._tiers = tiers
        self._models = models
        self._prompts = prompts
        self._context = context
        self._worker = worker
        self._clock = clock
        self._ids = ids

    async def create(self, caller: Principal, key: RequestKey | None, draft: AgentDraft) -> Agent:
        """Makes an agent with all its parts; a repeat under the same key goes on where the first stopped.

        Raises:
            ModelUnknown, NotFound: of the model, the system prompt, a tool, a block or an archive. Nothing is left
                behind.
            Unavailable: a tier is away. The creation goes on by itself; asking again under the same key gives
                its result.
        """
        agent = await self._first_record(caller, draft)
        creation = Creation(draft, *((key.method, key.request_id) if key is not None else (None, None)))
        agent_id, replayed = await self._store.begin_creation(key, agent, msgspec.json.encode(creation))
        if replayed:
            under_way = await self._store.creation(caller.organization_id, agent_id)
            if under_way is None:
                return await self._store.get(caller.organization_id, agent_id)
            agent, creation = under_way[0], msgspec.json.decode(under_way[1], type=Creation)
        return await self._complete(agent, creation)

    async def _first_record(self, caller: Principal, draft: AgentDraft) -> Agent:
        spec = AGENT_TYPES[draft.type]
        offer = await self._models.of(caller.organization_id)
        model = draft.model or await offer.default_handle()
        offer.resolve(model)
        if draft.model_settings.fallback_model:
            offer.resolve(draft.model_settings.fallback_model)
        require_summary_model(offer, draft.compaction_settings)
        agent_id, now = self._ids.new("agent"), self._clock.now()
        return Agent(
            id=agent_id,
            organization_id=caller.organization_id,
            name=draft.name or f"agent-{agent_id[-6:]}",
            type=draft.type,
            system=self._system(draft) if draft.system is None else draft.system,
            model=model,
            created_at=now,
            updated_at=now,
            default_conversation_id=derive_id("conv", agent_id),
            description=draft.description,
            model_settings=draft.model_settings,
            embedder=draft.embedder,
            tags=tuple(dict.fromkeys(draft.tags)),
            metadata=draft.metadata,
            time_zone=draft.time_zone,
            prompt_policy=draft.prompt_policy,
            message_buffer_autoclear=draft.message_buffer_autoclear or spec.forces_autoclear,
            continuation_message=require_continuation(draft.type, draft.continuation_message),
            compaction_settings=draft.compaction_settings,
            response_format=draft.response_format,
            enable_sleeptime=draft.enable_sleeptime,
            max_files_open=draft.max_files_open,
            per_file_view_window_char_limit=draft.per_file_view_window_char_limit,
            hidden=draft.hidden,
            identity_ids=draft.identity_ids,
            provenance=replace(draft.provenance, created_by_id=caller.subject_id, last_updated_by_id=caller.subject_id),
        )

    def _system(self, draft: AgentDraft) -> str:
        prompt = self._prompts.get(draft.system_prompt_key or AGENT_TYPES[draft.type].prompt_key)
        text = filled(prompt.text, draft.memory_variables)
        if len(text) > LONGEST_PROMPT:
            raise InvalidArgument(
                f"The system prompt with its variables is longer than {LONGEST_PROMPT} characters.",
                field="memory_variables",
            )
        return text

    async def _complete(self, agent: Agent, creation: Creation) -> Agent:
        try:
            complete = await self._make_parts(agent, creation.draft)
        except _AWAY:
            raise
        except MnemeshError:
            await self._undo(agent, creation)
            raise
        if not await self._store.activate(complete):
            # Somebody else made the same agent ready, and it may have been changed or deleted since.
            return await self._store.get(agent.organization_id, agent.id)
        return replace(complete, state=AgentState.ACTIVE)

    async def _make_parts(self, agent: Agent, draft: AgentDraft) -> Agent:
        """Every effect goes under a request id derived from the agent's, so that it may be made again."""
        agent = await self._with_tools(agent, draft)
        blocks = self._tiers.core_memory
        for place, new in enumerate(draft.blocks):
            block = Block("", new.label, new.value, new.limit, new.description, new.read_only)
            await blocks.create(f"{agent.id}/block/{place}", agent.id, block, new.metadata, new.tags)
        for block_id in draft.block_ids:
            await blocks.attach(f"{agent.id}/attach/{block_id}", agent.id, block_id)
        for archive_id in draft.archive_ids:
            await self._tiers.archival.attach(f"{agent.id}/attach/{archive_id}", agent.id, archive_id)
        first = FirstWindow(agent, agent.default_conversation_id, "0", agent.created_at)
        given = draft.initial_messages
        rest = first.default() if given is None else first.given(given)
        messages = [first.system(await self._system_text(agent)), *rest]
        # An earlier try that got through may have shown other memory: blocks are shared, and days pass.
        with suppress(RequestIdReused):
            await self._tiers.recall.create_context(
                f"{agent.id}/context", agent.id, agent.default_conversation_id, messages
            )
        return agent

    async def _system_text(self, agent: Agent) -> str:
        """The system message of a window that holds nothing else."""
        info, _ = await self._models.resolve(agent.organization_id, agent.model)
        core = await self._context.core_memory(agent.id)
        memory = memory_section(
            core,
            RulesSolver(agent.tool_rules).prompt(),
            numbered=shows_line_numbers(agent.type, info.provider),
            show_blocks=AGENT_TYPES[agent.type].shows_blocks,
        )
        return self._context.render_system(agent.time_zone, agent.system, memory, core, None, ArchivalSummary())

    async def _with_tools(self, agent: Agent, draft: AgentDraft) -> Agent:
        spec = AGENT_TYPES[agent.type]
        base = with_episodic_search(spec.base_tools, draft.compaction_settings) if draft.include_base_tools else ()
        names = dict.fromkeys((*base, *draft.tool_names))
        stored = [
            await self._tiers.tools.upsert_source(f"{agent.id}/source/{place}", source)
            for place, source in enumerate(draft.tool_sources)
        ]
        stored += await self._stored_tools(draft.tool_ids, tuple(name for name in names if name not in BUILTIN_SCHEMAS))
        custom = {tool.name: attachment(tool) for tool in stored}
        attached = {name: custom.get(name) or AttachedTool(name) for name in (*names, *custom)}
        wants_rules = draft.include_base_tool_rules
        if wants_rules is None:
            wants_rules = base_rules_by_default(agent.type, agent.model)
        own = tuple(rule for rule in spec.rules if rule.tool_name in attached)
        rules = (*draft.tool_rules, *((*own, *base_rules(attached)) if wants_rules else ()))
        return replace(agent, tools=tuple(attached.values()), tool_rules=tuple(dict.fromkeys(rules)))

    async def _stored_tools(self, ids: tuple[str, ...], names: tuple[str, ...]) -> list[CustomTool]:
        if not ids and not names:
            return []
        found = await self._tiers.tools.definitions(ids, names)
        known = {tool.id for tool in found} | {tool.name for tool in found}
        for wanted in (*ids, *names):
            if wanted not in known:
                raise NotFound(f"There is no tool {wanted}.", field="tools", resource_id=wanted)
        return list(found)

    async def _undo(self, agent: Agent, creation: Creation) -> None:
        """Takes the agent back, unless somebody else made it ready. Where a tier is away, the sweeper ends it."""
        key = None
        if creation.method is not None and creation.request_id is not None:
            key = RequestKey(agent.organization_id, creation.method, creation.request_id, "")
        if await self._store.abandon(agent.id, key):
            with suppress(*_AWAY):
                await self._erase(agent.id)
                await self._store.forget(agent.id)

    async def delete(self, caller: Principal, agent_id: str) -> Erased:
        """Deletes an agent and everything that only it has; what that was. One that is not there is a success.

        Raises:
            Unavailable: a tier is away. The agent is gone for everybody; the rest follows by itself.
        """
        if not await self._store.begin_deletion(caller.organization_id, agent_id):
            return Erased()
        return await self._complete_deletion(caller.organization_id, agent_id) + Erased(agents=1)

    async def _complete_deletion(self, organization_id: str, agent_id: str) -> Erased:
        unfinished = await self._worker.stop_runs_of(organization_id, agent_id)
        try:
            erased = await self._erase(agent_id)
            await self._store.forget(agent_id)
        finally:
            # Clients may have opened these streams again after the runs were stopped.
            self._worker.end_streams(unfinished)
        return erased

    async def _erase(self, agent_id: str) -> Erased:
        erased, request_id = Erased(), f"{agent_id}/erase"
        for tier in (self._tiers.core_memory, self._tiers.recall, self._tiers.archival):
            erased += await tier.erase_agent(request_id, agent_id)
        return erased

    async def finish_all(self) -> None:
        """Goes over the creations and deletions that are half done, and finishes those that can be."""
        await each("agents", self._store.unfinished, self._finish, lambda found: found[0].id)

    async def _finish(self, found: tuple[Agent, bytes]) -> None:
        agent, creation = found
        with as_principal(Principal(agent.organization_id, agent.provenance.created_by_id)):
            if agent.state is AgentState.DELETING:
                await self._complete_deletion(agent.organization_id, agent.id)
            elif agent.created_at < self._clock.now() - GRACE:
                await self._complete(agent, msgspec.json.decode(creation, type=Creation))
