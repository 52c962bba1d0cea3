"""Creates and deletes agents across the services, so that no client ever sees an incomplete agent."""

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import msgspec
import structlog
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
from mnemesh_orchestrator.llm.embedders import EmbedderDirectory
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
from mnemesh_orchestrator.model.creation import AgentDraft, Creation, filled, prepared_draft
from mnemesh_orchestrator.model.custom_tools import CustomTool
from mnemesh_orchestrator.model.erasure import CREATED_FOR_AGENT, Erased, ErasureScope
from mnemesh_orchestrator.model.prompts import MAX_SYSTEM_PROMPT
from mnemesh_orchestrator.ports import Services
from mnemesh_orchestrator.prompt.assembly import memory_section
from mnemesh_orchestrator.prompt.prompts import Prompts
from mnemesh_orchestrator.runs.worker import RunWorker
from mnemesh_orchestrator.store.base import AgentStore
from mnemesh_orchestrator.usecases.first_messages import FirstMessageFactory
from mnemesh_orchestrator.usecases.reconciliation import GIVE_UP, reconcile
from mnemesh_orchestrator.usecases.tool_attachments import attached_tool, base_tools

GRACE = timedelta(seconds=60)
"""A younger creation may still run in another process."""

_log = structlog.get_logger("mnemesh.reconciliation")
_UNAVAILABLE = (Unavailable, DeadlineExceeded, Internal)


class AgentLifecycle:
    """Creates and deletes agents. Each creation and deletion survives a crash and the outage of a service."""

    def __init__(
        self,
        store: AgentStore,
        services: Services,
        models: ModelCatalog,
        embedders: EmbedderDirectory,
        prompts: Prompts,
        context: ContextBuilder,
        worker: RunWorker,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._store = store
        self._services = services
        self._models = models
        self._embedders = embedders
        self._prompts = prompts
        self._context = context
        self._worker = worker
        self._clock = clock
        self._ids = ids

    async def create(self, caller: Principal, key: RequestKey | None, draft: AgentDraft) -> Agent:
        """Creates an agent with all its parts, and returns it. A repeat under the same key continues the creation.

        Raises:
            InvalidArgument: A field of the draft breaks its rule.
            EmbedderUnknown: No service is configured for the embedder.
            ModelUnknown, NotFound: The model, the system prompt, a tool, a block or an archive does not exist. Nothing
                is kept.
            Unavailable: A service cannot be reached. The creation is finished later; a repeat under the same key
                returns its result.
        """
        draft = prepared_draft(draft)
        agent = await self._first_record(caller, draft)
        creation = Creation(draft, *((key.method, key.request_id) if key is not None else (None, None)))
        agent_id, replayed = await self._store.begin_creation(key, agent, msgspec.json.encode(creation))
        if replayed:
            unfinished = await self._store.creation(caller.organization_id, agent_id)
            if unfinished is None:
                return await self._store.get(caller.organization_id, agent_id)
            agent, creation = unfinished[0], msgspec.json.decode(unfinished[1], type=Creation)
        return await self._complete(agent, creation)

    async def _first_record(self, caller: Principal, draft: AgentDraft) -> Agent:
        spec = AGENT_TYPES[draft.type]
        models = await self._models.of(caller.organization_id)
        model = draft.model or await models.default_handle()
        models.resolve(model)
        if draft.model_settings.fallback_model:
            models.resolve(draft.model_settings.fallback_model)
        require_summary_model(models, draft.compaction_settings)
        await self._embedders.require(draft.embedder)
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
            approval_timeout_seconds=draft.approval_timeout_seconds,
            provenance=replace(draft.provenance, created_by_id=caller.subject_id, last_updated_by_id=caller.subject_id),
        )

    def _system(self, draft: AgentDraft) -> str:
        prompt = self._prompts.get(draft.system_prompt_key or AGENT_TYPES[draft.type].prompt_key)
        text = filled(prompt.text, draft.memory_variables)
        if len(text) > MAX_SYSTEM_PROMPT:
            raise InvalidArgument(
                f"memory_variables must keep the system prompt within {MAX_SYSTEM_PROMPT:,} characters.",
                field="memory_variables",
            )
        return text

    async def _complete(self, agent: Agent, creation: Creation) -> Agent:
        try:
            complete = await self._create_parts(agent, creation.draft)
        except _UNAVAILABLE:
            raise
        except MnemeshError:
            await self._undo(agent, creation)
            raise
        if not await self._store.activate(complete):
            # Another process finished the creation, and the agent may have been changed or deleted since.
            return await self._store.get(agent.organization_id, agent.id)
        return replace(complete, state=AgentState.ACTIVE)

    async def _create_parts(self, agent: Agent, draft: AgentDraft) -> Agent:
        """Creates the parts. The request id of each effect is derived from the agent, so that it can be repeated."""
        agent = await self._with_tools(agent, draft)
        blocks = self._services.core_memory
        for index, new in enumerate(draft.blocks):
            # An earlier release may have sent the request in another form.
            with suppress(RequestIdReused):
                await blocks.create(f"{agent.id}/block/{index}", agent.id, new)
        for block_id in draft.block_ids:
            await blocks.attach(f"{agent.id}/attach/{block_id}", agent.id, block_id)
        for archive_id in draft.archive_ids:
            await self._services.archival.attach(f"{agent.id}/attach/{archive_id}", agent.id, archive_id)
        first = FirstMessageFactory(agent, agent.default_conversation_id, "0", agent.created_at)
        initial = draft.initial_messages
        rest = first.default() if initial is None else first.from_inputs(initial)
        messages = [first.system(await self._system_text(agent)), *rest]
        # An earlier attempt that succeeded may have rendered other memory, because blocks are shared.
        with suppress(RequestIdReused):
            await self._services.recall.create_context(
                f"{agent.id}/context", agent.id, agent.default_conversation_id, messages
            )
        return agent

    async def _system_text(self, agent: Agent) -> str:
        """Returns the system message of a window without other messages."""
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
        base = base_tools(spec.base_tools, draft.compaction_settings) if draft.include_base_tools else ()
        names = dict.fromkeys((*base, *draft.tool_names))
        stored = [
            await self._services.tools.upsert_source(f"{agent.id}/source/{index}", source)
            for index, source in enumerate(draft.tool_sources)
        ]
        stored += await self._stored_tools(draft.tool_ids, tuple(name for name in names if name not in BUILTIN_SCHEMAS))
        custom = {tool.name: attached_tool(tool) for tool in stored}
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
        tools = await self._services.tools.definitions(ids, names)
        known = {tool.id for tool in tools} | {tool.name for tool in tools}
        for wanted in (*ids, *names):
            if wanted not in known:
                raise NotFound(f"There is no tool {wanted}.", field="tools", resource_id=wanted)
        return list(tools)

    async def _undo(self, agent: Agent, creation: Creation) -> None:
        """Removes the agent, unless another process finished it. Reconciliation finishes what an outage interrupts."""
        key = None
        if creation.method is not None and creation.request_id is not None:
            key = RequestKey(agent.organization_id, creation.method, creation.request_id, "")
        if await self._store.abandon(agent.id, key):
            with suppress(*_UNAVAILABLE):
                await self._erase(agent.id, CREATED_FOR_AGENT)
                await self._store.remove(agent.id)

    async def delete(self, caller: Principal, agent_id: str, scope: ErasureScope = CREATED_FOR_AGENT) -> Erased:
        """Deletes an agent, what was created for it, and what `scope` names. Returns the counts.

        A missing agent is no error. A repeat continues the deletion with the scope of the first request.

        Raises:
            Unavailable: A service cannot be reached. The agent is invisible, and the rest is deleted later.
        """
        stored = await self._store.begin_deletion(caller.organization_id, agent_id, scope)
        if stored is None:
            return Erased()
        return await self._complete_deletion(caller.organization_id, agent_id, stored) + Erased(agents=1)

    async def _complete_deletion(self, organization_id: str, agent_id: str, scope: ErasureScope) -> Erased:
        unfinished = await self._worker.stop_runs_of(organization_id, agent_id)
        try:
            erased = await self._erase(agent_id, scope)
            await self._store.remove(agent_id)
        finally:
            # Clients may have reopened these streams after the runs were stopped.
            self._worker.end_streams(unfinished)
        return erased

    async def _erase(self, agent_id: str, scope: ErasureScope) -> Erased:
        services = self._services
        # Earlier releases erased more under "{agent_id}/erase".
        request_id = f"{agent_id}/erase/{int(scope.unshared_blocks)}{int(scope.unshared_archives)}"
        erased = await services.core_memory.erase_agent(request_id, agent_id, unshared=scope.unshared_blocks)
        erased += await services.recall.erase_agent(f"{agent_id}/erase", agent_id)
        return erased + await services.archival.erase_agent(request_id, agent_id, unshared=scope.unshared_archives)

    async def finish_all(self) -> None:
        """Finishes the creations and deletions that were interrupted."""
        await reconcile("agents", self._store.unfinished, self._finish, lambda item: item[0].id)

    async def _finish(self, item: tuple[Agent, bytes]) -> None:
        agent, creation = item
        with as_principal(Principal(agent.organization_id, agent.provenance.created_by_id)):
            if agent.state is AgentState.DELETING:
                scope = msgspec.json.decode(creation, type=ErasureScope) if creation else CREATED_FOR_AGENT
                await self._complete_deletion(agent.organization_id, agent.id, scope)
            elif agent.created_at < self._clock.now() - GRACE:
                draft = msgspec.json.decode(creation, type=Creation)
                try:
                    await self._complete(agent, draft)
                except Internal as error:
                    if agent.created_at > self._clock.now() - GIVE_UP:
                        raise
                    _log.error("creation_undone", resource="agent", id=agent.id, error=error.message)
                    await self._undo(agent, draft)
