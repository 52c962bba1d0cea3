"""What a turn begins with: model, tools, window and core memory of a claimed run, and its journal where it has one."""

from collections.abc import Mapping
from dataclasses import replace

import structlog

from engram_orchestrator.builtin.executor import BuiltinTools
from engram_orchestrator.llm.errors import ModelUnknown
from engram_orchestrator.llm.formats import demand, is_structured
from engram_orchestrator.llm.organizations import Models
from engram_orchestrator.loop import approvals
from engram_orchestrator.loop.answers import unsaid_input
from engram_orchestrator.loop.context import ContextBuilder, Gathered
from engram_orchestrator.loop.policy import POLICIES, LoopPolicy
from engram_orchestrator.loop.rules import RulesSolver
from engram_orchestrator.loop.tiers import Patience
from engram_orchestrator.loop.toolbox import make_toolbox
from engram_orchestrator.loop.turn import CalledModel, Progress, Turn
from engram_orchestrator.model.agent_types import AGENT_TYPES, AgentTypeSpec
from engram_orchestrator.model.agents import Agent, Conversation
from engram_orchestrator.model.memory import Window
from engram_orchestrator.model.models import ModelInfo, ModelSettings
from engram_orchestrator.model.runs import EntryKind, JournalEntry, Run
from engram_orchestrator.ports import RecallPort
from engram_orchestrator.store.base import Claim, RunStore

_log = structlog.get_logger("engram.runs")


class TurnBuilder:
    """Makes the turn of a claimed run."""

    def __init__(
        self,
        store: RunStore,
        context: ContextBuilder,
        recall: RecallPort,
        models: Models,
        builtin: BuiltinTools,
        patience: Patience,
    ) -> None:
        self._store = store
        self._context = context
        self._recall = recall
        self._models = models
        self._builtin = builtin
        self._patience = patience

    async def begin(self, claim: Claim, progress: Progress) -> Turn:
        """Everything that the first step needs; of a run that was begun before, also what its journal holds.

        Raises:
            Unavailable, DeadlineExceeded: an essential tier is away. A run that was begun before waits for it instead.
            ModelUnknown: nobody serves the run's model.
        """
        run, agent = claim.run, claim.agent
        model = await self._model(run, agent, claim.conversation, AGENT_TYPES[agent.type])
        entries = await self._store.journal(run.id) if claim.taken_up else ()
        gathered = await self._gather(claim)
        journal = {(entry.step_id, entry.kind, entry.ordinal): entry for entry in entries}
        return self._turn(claim, progress, model, gathered, journal)

    async def preview(self, claim: Claim, progress: Progress) -> Turn:
        """The turn that a claim would begin with, were it one. Nothing is changed by it, nor stored.

        Raises:
            Unavailable, DeadlineExceeded: an essential tier is away.
            ModelUnknown: nobody serves the run's model.
        """
        run, agent = claim.run, claim.agent
        model = await self._model(run, agent, claim.conversation, AGENT_TYPES[agent.type])
        gathered = await self._context.gather(claim.conversation, _tool_ids(agent))
        if _is_cleared(agent):
            gathered = replace(gathered, window=replace(gathered.window, messages=gathered.window.messages[:1]))
        return self._turn(claim, progress, model, gathered, {})

    def _turn(
        self,
        claim: Claim,
        progress: Progress,
        model: CalledModel,
        gathered: Gathered,
        journal: Mapping[tuple[str, EntryKind, int], JournalEntry],
    ) -> Turn:
        run, agent = claim.run, claim.agent
        spec = AGENT_TYPES[agent.type]
        solver, policy = RulesSolver(agent.tool_rules), POLICIES[spec.policy]
        is_told = is_structured(agent.response_format)
        toolbox = make_toolbox(
            agent,
            self._builtin,
            gathered.custom,
            solver,
            heartbeat=policy.injects_heartbeat,
            thinking=bool(model.settings.inner_thoughts_in_kwargs),
            client_tools=run.config.client_tools,
            speech_format=agent.response_format if policy.requires_tool_call and is_told else None,
        )
        dead = approvals.dead_request(run, gathered.window)
        closing = () if dead is None else approvals.closing(run, dead)
        return Turn(
            run=run,
            agent=agent,
            conversation=claim.conversation,
            lease=claim.lease,
            progress=progress,
            spec=spec,
            policy=policy,
            model=model,
            solver=solver,
            toolbox=toolbox,
            window=gathered.window,
            core=gathered.core,
            journal=journal,
            pending=(*closing, *unsaid_input(run, gathered.window)),
            notes=(*gathered.notes, *_demands(agent, policy, model.info)),
        )

    async def _gather(self, claim: Claim) -> Gathered:
        agent = claim.agent
        tool_ids = _tool_ids(agent)
        # What was decided must be carried out: its turn waits for its tiers as one does that was begun before.
        bound = claim.taken_up or claim.run.resumes is not None

        async def gather() -> Gathered:
            gathered = await self._context.gather(claim.conversation, tool_ids, whole=bound)
            if not _is_cleared(agent) or claim.run.resumes is not None:
                return gathered
            return replace(gathered, window=await self._cleared(claim, gathered.window))

        return await (self._patience.with_tier(gather) if bound else gather())

    async def _cleared(self, claim: Claim, window: Window) -> Window:
        """The window without what earlier turns left in it; with what this one put there before it was taken up."""
        run, (system, *rest) = claim.run, window.messages
        if not rest or any(message.run_id == run.id for message in rest):
            return window
        lease = claim.lease
        cleared = await self._recall.replace_context(
            f"{run.id}/{lease.epoch}/autoclear",
            claim.agent.id,
            run.conversation_id,
            window.version,
            [system.id],
            run_id=run.id,
            epoch=lease.epoch,
        )
        return self._context.remember(cleared)

    async def _model(self, run: Run, agent: Agent, conversation: Conversation, spec: AgentTypeSpec) -> CalledModel:
        """The model of a run: its own override, else the conversation's, else the agent's; settings likewise."""
        given = agent.model_settings
        if conversation.model_settings is not None:
            given = conversation.model_settings.over(given)
        if given.inner_thoughts_in_kwargs is None:
            given = replace(given, inner_thoughts_in_kwargs=spec.inner_thoughts)
        handle = run.config.override_model or conversation.model or agent.model
        info, client = await self._models.resolve_for_turn(agent.organization_id, handle)
        return CalledModel(info, given.over(info.defaults), client, await self._fallback(agent, given, info))

    async def _fallback(self, agent: Agent, given: ModelSettings, main: ModelInfo) -> CalledModel | None:
        """The model that goes on where the main one stays away; None where there is none, or nobody serves it."""
        if not given.fallback_model or given.fallback_model == main.handle:
            return None
        try:
            info, client = await self._models.resolve_for_turn(agent.organization_id, given.fallback_model)
        except ModelUnknown as error:
            _log.warning("the fallback model is not served", model=error.metadata.get("model"))
            return None
        window = min(given.context_window or info.context_window, info.context_window)
        given = replace(given, context_window=window, fallback_model=None)
        if info.provider != main.provider:
            given = replace(given, provider_options=None)  # they are in the words of one API
        return CalledModel(info, given.over(info.defaults), client)


def _demands(agent: Agent, policy: LoopPolicy, model: ModelInfo) -> tuple[str, ...]:
    """What the model is told of the agent's response format. An agent that speaks by a tool has it in the schema."""
    wanted = agent.response_format
    if wanted is None or not is_structured(wanted) or policy.requires_tool_call:
        return ()
    told = demand(wanted, model)
    return () if told is None else (told,)


def _tool_ids(agent: Agent) -> tuple[str, ...]:
    return tuple(tool.tool_id for tool in agent.tools if tool.tool_id is not None)


def _is_cleared(agent: Agent) -> bool:
    """Each turn of the agent begins with an empty window."""
    return agent.message_buffer_autoclear or AGENT_TYPES[agent.type].forces_autoclear
