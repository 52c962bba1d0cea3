"""Builds the turn of a claimed run: its model, tools, window, core memory, and journal."""

from dataclasses import replace

import structlog
from mnemesh_kit.clock import Clock
from mnemesh_types.messages import Message, Role

from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.errors import ToolsMissing
from mnemesh_orchestrator.llm.errors import ModelUnknown
from mnemesh_orchestrator.llm.formats import format_instruction, is_structured
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.loop.approvals import closing_messages
from mnemesh_orchestrator.loop.call_plan import make_toolbox
from mnemesh_orchestrator.loop.context_reader import CUSTOM_TOOLS, ContextReader, Gathered
from mnemesh_orchestrator.loop.journal import Journals, JournalWriter
from mnemesh_orchestrator.loop.retry import RetryPolicy, note_of
from mnemesh_orchestrator.loop.rules import POLICIES, LoopPolicy, RulesSolver
from mnemesh_orchestrator.loop.state import CalledModel, Turn, TurnContext, TurnState, required_format
from mnemesh_orchestrator.loop.step_messages import input_messages
from mnemesh_orchestrator.model.agent_types import AGENT_TYPES, AgentTypeSpec
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.approvals import OpenRequest, open_request
from mnemesh_orchestrator.model.claims import TurnClaim, UnfinishedDecision
from mnemesh_orchestrator.model.context_window import ContextWindow
from mnemesh_orchestrator.model.conversations import Conversation
from mnemesh_orchestrator.model.models import ModelInfo, ModelSettings, ResponseFormat
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.model.sleeptime import start_of_kept
from mnemesh_orchestrator.ports.recall import RecallPort
from mnemesh_orchestrator.ports.recall_writes import RecallWrites
from mnemesh_orchestrator.runs.early_reads import EarlyReads
from mnemesh_orchestrator.runs.input_recorder import InputRecorder
from mnemesh_orchestrator.runs.supervision import supervising
from mnemesh_orchestrator.store.base import RunStore

_log = structlog.get_logger("mnemesh.runs")


class TurnBuilder:
    """Builds the turn of a claimed run."""

    def __init__(
        self,
        store: RunStore,
        journals: Journals,
        context: ContextReader,
        early: EarlyReads,
        recall: RecallPort,
        writes: RecallWrites,
        models: ModelCatalog,
        builtin: BuiltinTools,
        inputs: InputRecorder,
        retry: RetryPolicy,
        clock: Clock,
    ) -> None:
        self._store = store
        self._journals = journals
        self._context = context
        self._early = early
        self._recall = recall
        self._writes = writes
        self._models = models
        self._builtin = builtin
        self._inputs = inputs
        self._retry = retry
        self._clock = clock

    async def build(self, claim: TurnClaim, journal: JournalWriter, seconds: float | None = None) -> Turn:
        """Returns the turn of a claimed run, ready for its first step. Loads the journal of a run that is resumed.

        Args:
            claim: the claim.
            journal: the journal of the run.
            seconds: a shorter limit than that of a step for the wait for recall and blocks.

        Raises:
            Unavailable, DeadlineExceeded, StorageFull: recall or blocks was unavailable for the whole time.
            ModelUnknown: no provider serves the run's model.
        """
        started, spec = self._clock.monotonic(), AGENT_TYPES[claim.agent.type]
        model = await self._model(claim.run, claim.agent, claim.conversation, spec)
        if claim.resumed:
            await journal.reload()
        gathered = await self._gather(claim, model, seconds)
        await self._inputs.record_before(claim, self._retry)
        open_approval = open_request(gathered.window.messages)
        if not gathered.has_tools and not _can_act(claim.agent, spec):
            gathered = replace(
                gathered,
                custom=await self._retry.call(lambda: self._context.stored_tools(claim.agent), seconds),
                notes=tuple(note for note in gathered.notes if note != note_of(CUSTOM_TOOLS)),
            )
        undone = await self._undone(claim.run, open_approval)
        if undone is not None:
            journal.add_earlier_entries(undone.entries)
            claim = replace(claim, run=replace(claim.run, resumes=undone.resumption))
            # A resumed decision waits for the tools of its calls, and reads them again.
            gathered = await self._gather(claim, model, seconds)
            open_approval = open_request(gathered.window.messages)
        elif claim.run.retried_run_ids and claim.run.resumes is not None and not claim.run.resumes.withdrawn:
            # Its calls have run, or they left the window.
            claim = replace(claim, run=replace(claim.run, resumes=None))
        if claim.run.resumes is None:
            gathered = replace(gathered, window=await self._trimmed(claim, gathered.window, seconds))
            open_approval = open_approval and open_request(gathered.window.messages)
        return self._turn(claim, journal, model, gathered, open_approval, started)

    async def _undone(self, run: Run, open_approval: OpenRequest | None) -> UnfinishedDecision | None:
        """Returns a decision whose run failed before all its calls had run. This run executes it first."""
        if open_approval is None or (run.resumes is not None and not run.retried_run_ids):
            return None
        undone = await self._store.unfinished_decision(run.conversation_id, open_approval.request.id)
        return None if undone is None or undone.resumption.withdrawn else undone

    async def preview(self, claim: TurnClaim) -> Turn:
        """Returns the turn that a claim would begin with. Changes and stores nothing.

        Raises:
            Unavailable, DeadlineExceeded: recall or blocks is unavailable.
            ModelUnknown: no provider serves the run's model.
        """
        run, agent = claim.run, claim.agent
        model = await self._model(run, agent, claim.conversation, AGENT_TYPES[agent.type])
        gathered = await self._context.gather(claim.conversation, agent)
        gathered = replace(gathered, window=replace(gathered.window, messages=_kept(claim, gathered.window)))
        journal = self._journals.open(run, claim.lease)
        turn = self._turn(claim, journal, model, gathered, open_request(gathered.window.messages), 0.0)
        turn.state.step_number = 1
        return turn

    def _turn(
        self,
        claim: TurnClaim,
        journal: JournalWriter,
        model: CalledModel,
        gathered: Gathered,
        open_approval: OpenRequest | None,
        started: float,
    ) -> Turn:
        run, agent = claim.run, claim.agent
        if run.lineage.supervised_agent_ids:
            agent = supervising(agent)
        spec = AGENT_TYPES[agent.type]
        solver, policy = RulesSolver(agent.tool_rules), POLICIES[spec.policy]
        format_ = required_format(run, agent)
        toolbox = make_toolbox(
            agent,
            self._builtin,
            gathered.custom,
            solver,
            heartbeat=policy.injects_heartbeat,
            thinking=bool(model.settings.inner_thoughts_in_kwargs),
            client_tools=run.config.client_tools,
            is_whole=gathered.has_tools,
            speech_format=format_ if policy.requires_tool_call and is_structured(format_) else None,
        )
        if policy.requires_tool_call and not toolbox.names:
            raise ToolsMissing(
                f"An agent of the type {agent.type.value} acts by tools, and this one has none. Attach a tool.",
                resource_id=agent.id,
            )
        closing: tuple[Message, ...] = ()
        if open_approval is not None and run.resumes is None:
            # Once another run begins, the request can no longer be answered.
            closing = closing_messages(run, open_approval)
        context = TurnContext(
            run=run,
            agent=agent,
            conversation=claim.conversation,
            lease=claim.lease,
            spec=spec,
            policy=policy,
            toolbox=toolbox,
            journal=journal,
            response_format=format_,
            claims=claim.claims,
            started=started,
        )
        pending = (*closing, *input_messages(run, gathered.window))
        state = TurnState(
            model=model,
            window=gathered.window,
            core=gathered.core,
            directories=gathered.directories,
            solver=solver,
            pending=pending,
            notes=(
                *gathered.notes,
                *_format_notes(format_, policy, model.info),
                *(() if pending else _retry_notes(run, gathered.window)),
            ),
        )
        return Turn(context, state)

    async def _gather(self, claim: TurnClaim, model: CalledModel, seconds: float | None) -> Gathered:
        agent = claim.agent
        # Another model of one conversation does not change what the agent sees of its files.
        is_own = model.info.handle == agent.model
        window = (model.settings.context_window or model.info.context_window) if is_own else None
        # A run that was begun before, and a decision, need the tools of their calls.
        must_finish = claim.resumed or claim.run.resumes is not None

        async def gather() -> Gathered:
            essentials = self._early.essentials(claim)
            return await self._context.gather(
                claim.conversation, agent, whole=must_finish, context_window=window, essentials=essentials
            )

        return await self._retry.call(gather, seconds)

    async def _trimmed(self, claim: TurnClaim, window: ContextWindow, seconds: float | None) -> ContextWindow:
        """Returns the window that the agent's turns begin with. A window that holds messages of this run stays."""
        run, kept = claim.run, _kept(claim, window)
        if len(kept) == len(window.messages) or any(message.run_id == run.id for message in window.messages):
            return window
        lease = claim.lease

        async def trim(epoch: int) -> ContextWindow:
            return await self._recall.replace_context(
                f"{run.id}/{lease.epoch}/autoclear",
                claim.agent.id,
                run.conversation_id,
                window.version,
                [message.id for message in kept],
                run_id=run.id,
                epoch=epoch,
            )

        trimmed = await self._retry.call(lambda: self._writes.write(lease, trim), seconds)
        return self._context.remember(trimmed)

    async def _model(self, run: Run, agent: Agent, conversation: Conversation, spec: AgentTypeSpec) -> CalledModel:
        """Returns the model of a run: the run's override, else the conversation's, else the agent's."""
        settings = agent.model_settings
        for override in (conversation.model_settings, run.config.model_settings):
            settings = override.over(settings) if override is not None else settings
        if settings.inner_thoughts_in_kwargs is None:
            settings = replace(settings, inner_thoughts_in_kwargs=spec.inner_thoughts)
        handle = run.config.override_model or conversation.model or agent.model
        info, client = await self._models.resolve_for_turn(agent.organization_id, handle)
        fallback = None
        if settings.fallback_model and settings.fallback_model != info.handle:
            fallback = await self._fallback(agent.organization_id, settings, settings.fallback_model, info.provider)
        return CalledModel(info, settings.over(info.defaults), client, fallback)

    async def _fallback(
        self, organization_id: str, settings: ModelSettings, handle: str, main_provider: str
    ) -> CalledModel | None:
        """Returns the model that replaces an unavailable one; None if no provider serves it."""
        try:
            info, client = await self._models.resolve_for_turn(organization_id, handle)
        except ModelUnknown:
            _log.warning("fallback_model_unknown", main_provider=main_provider)
            return None
        window = min(settings.context_window or info.context_window, info.context_window)
        settings = replace(settings, context_window=window, fallback_model=None)
        if info.provider != main_provider:
            settings = replace(settings, provider_options=None)  # options are in the words of one API
        return CalledModel(info, settings.over(info.defaults), client)


def _can_act(agent: Agent, spec: AgentTypeSpec) -> bool:
    """Returns whether an agent can take a turn without its stored tools."""
    return not POLICIES[spec.policy].requires_tool_call or any(tool.tool_id is None for tool in agent.tools)


def _format_notes(format_: ResponseFormat | None, policy: LoopPolicy, model: ModelInfo) -> tuple[str, ...]:
    """Returns the note about the response format. If the agent speaks by a tool, the tool's schema contains it."""
    if format_ is None or not is_structured(format_) or policy.requires_tool_call:
        return ()
    note = format_instruction(format_, model)
    return () if note is None else (note,)


def _retry_notes(run: Run, window: ContextWindow) -> tuple[str, ...]:
    """Returns the note of a retry whose input is in the window, before an answer. Providers expect no answer last."""
    last = window.messages[-1]
    if not run.retried_run_ids or last.role is not Role.ASSISTANT or last.tool_calls:
        return ()
    return ("An earlier turn was interrupted. Continue it now: answer the user's message that has no full answer yet.",)


def _kept(claim: TurnClaim, window: ContextWindow) -> tuple[Message, ...]:
    """Returns the messages that a turn begins with: the system message alone, the last messages, or all of them."""
    system, *rest = window.messages
    spec = AGENT_TYPES[claim.agent.type]
    if claim.agent.message_buffer_autoclear or spec.forces_autoclear:
        return (system,)
    buffer = claim.buffer or spec.buffer
    start = 0 if buffer is None else start_of_kept(rest, buffer)
    return (system, *rest[start:]) if start else window.messages
