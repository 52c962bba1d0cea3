"""What a turn begins with: model, tools, window and core memory of a claimed run, and its journal where it has one."""

from collections.abc import Mapping
from dataclasses import replace

import structlog
from mnemesh_types.messages import Message, Role

from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.llm.errors import ModelUnknown
from mnemesh_orchestrator.llm.formats import demand, is_structured
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.loop import approvals
from mnemesh_orchestrator.loop.context_builder import ContextBuilder, Gathered
from mnemesh_orchestrator.loop.policy import POLICIES, LoopPolicy
from mnemesh_orchestrator.loop.retry import RESTART_SECONDS, RetryPolicy
from mnemesh_orchestrator.loop.rules import RulesSolver
from mnemesh_orchestrator.loop.state import CalledModel, Progress, Turn, wanted_format
from mnemesh_orchestrator.loop.step_messages import unsaid_input
from mnemesh_orchestrator.loop.toolbox import make_toolbox
from mnemesh_orchestrator.model.agent_types import AGENT_TYPES, AgentTypeSpec
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.approvals import open_request
from mnemesh_orchestrator.model.claims import Claim, Undone
from mnemesh_orchestrator.model.context_window import ContextWindow
from mnemesh_orchestrator.model.conversations import Conversation
from mnemesh_orchestrator.model.journal import EntryKind, JournalEntry
from mnemesh_orchestrator.model.models import ModelInfo, ModelSettings, ResponseFormat
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.ports.recall import RecallPort
from mnemesh_orchestrator.store.base import RunStore

_log = structlog.get_logger("mnemesh.runs")


class TurnBuilder:
    """Makes the turn of a claimed run."""

    def __init__(
        self,
        store: RunStore,
        context: ContextBuilder,
        recall: RecallPort,
        models: ModelCatalog,
        builtin: BuiltinTools,
        patience: RetryPolicy,
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
        model = await self._model(claim.run, claim.agent, claim.conversation, AGENT_TYPES[claim.agent.type])
        entries = await self._store.journal(claim.run.id) if claim.taken_up else ()
        gathered = await self._gather(claim)
        undone = await self._undone(claim.run, gathered.window)
        if undone is not None:
            entries = (*undone.entries, *entries)
            claim = replace(claim, run=replace(claim.run, resumes=undone.resumption))
            # What was decided waits for its tools.
            gathered = await self._gather(claim)
        elif claim.run.takes_up and claim.run.resumes is not None and not claim.run.resumes.withdrawn:
            # It is carried out, or its window is gone.
            claim = replace(claim, run=replace(claim.run, resumes=None))
        progress.run = claim.run
        if claim.run.resumes is None:
            gathered = replace(gathered, window=await self._shortened(claim, gathered.window))
        journal = {(entry.step_id, entry.kind, entry.ordinal): entry for entry in entries}
        return self._turn(claim, progress, model, gathered, journal)

    async def _undone(self, run: Run, window: ContextWindow) -> Undone | None:
        """A decision that a failed run left undone, for this run to carry out ahead of what it is about itself."""
        if run.resumes is not None and not run.takes_up:
            return None
        request = open_request(window.messages)
        if request is None:
            return None
        undone = await self._store.undone(run.conversation_id, request.request.id)
        return None if undone is None or undone.resumption.withdrawn else undone

    async def preview(self, claim: Claim, progress: Progress) -> Turn:
        """The turn that a claim would begin with, were it one. Nothing is changed by it, nor stored.

        Raises:
            Unavailable, DeadlineExceeded: an essential tier is away.
            ModelUnknown: nobody serves the run's model.
        """
        run, agent = claim.run, claim.agent
        model = await self._model(run, agent, claim.conversation, AGENT_TYPES[agent.type])
        gathered = await self._context.gather(claim.conversation, _tool_ids(agent))
        gathered = replace(gathered, window=replace(gathered.window, messages=_kept(agent, gathered.window)))
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
        wanted = wanted_format(run, agent)
        toolbox = make_toolbox(
            agent,
            self._builtin,
            gathered.custom,
            solver,
            heartbeat=policy.injects_heartbeat,
            thinking=bool(model.settings.inner_thoughts_in_kwargs),
            client_tools=run.config.client_tools,
            speech_format=wanted if policy.requires_tool_call and is_structured(wanted) else None,
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
            notes=(*gathered.notes, *_demands(wanted, policy, model.info)),
        )

    async def _gather(self, claim: Claim) -> Gathered:
        agent = claim.agent
        tool_ids = _tool_ids(agent)
        # What was decided must be carried out: its turn waits for its tiers as one does that was begun before.
        bound = claim.taken_up or claim.run.resumes is not None

        async def gather() -> Gathered:
            return await self._context.gather(claim.conversation, tool_ids, whole=bound)

        return await self._patience.call(gather, None if bound else RESTART_SECONDS)

    async def _shortened(self, claim: Claim, window: ContextWindow) -> ContextWindow:
        """The window as the agent's turns begin; with what this one put there before it was taken up."""
        run, kept = claim.run, _kept(claim.agent, window)
        if len(kept) == len(window.messages) or any(message.run_id == run.id for message in window.messages):
            return window
        lease = claim.lease

        async def shorten() -> ContextWindow:
            return await self._recall.replace_context(
                f"{run.id}/{lease.epoch}/autoclear",
                claim.agent.id,
                run.conversation_id,
                window.version,
                [message.id for message in kept],
                run_id=run.id,
                epoch=lease.epoch,
            )

        shortened = await self._patience.call(shorten, None if claim.taken_up else RESTART_SECONDS)
        return self._context.remember(shortened)

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


def _demands(wanted: ResponseFormat | None, policy: LoopPolicy, model: ModelInfo) -> tuple[str, ...]:
    """What the model is told of the response format. An agent that speaks by a tool has it in the schema."""
    if wanted is None or not is_structured(wanted) or policy.requires_tool_call:
        return ()
    told = demand(wanted, model)
    return () if told is None else (told,)


def _tool_ids(agent: Agent) -> tuple[str, ...]:
    return tuple(tool.tool_id for tool in agent.tools if tool.tool_id is not None)


def _kept(agent: Agent, window: ContextWindow) -> tuple[Message, ...]:
    """What a turn of the agent finds in its window: the system message alone, the last messages, or everything."""
    system, *rest = window.messages
    spec = AGENT_TYPES[agent.type]
    if agent.message_buffer_autoclear or spec.forces_autoclear:
        return (system,)
    if spec.buffer is None or len(rest) <= spec.buffer.most:
        return window.messages
    # Only where somebody speaks: a call and its return stay together.
    beginnings = [place for place, message in enumerate(rest) if message.role is Role.USER]
    least = len(rest) - spec.buffer.least
    late = [place for place in beginnings if place >= least]
    start = late[0] if late else max(beginnings, default=0)
    return (system, *rest[start:])
