"""Builds the turn of a claimed run: early reads, recorded input, model, tools, window, core memory and journal."""

import asyncio
from collections import OrderedDict
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Final

import structlog
from mnemesh_kit.call_context import Principal, as_principal, set_remaining
from mnemesh_kit.errors import TEMPORARY, MnemeshError, Unavailable
from mnemesh_kit.time import Clock
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import Message, Role

from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.clients.recall import RecallClient
from mnemesh_orchestrator.errors import ToolsMissing
from mnemesh_orchestrator.llm.errors import ModelUnknown
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.llm.schemas import format_instruction, is_structured
from mnemesh_orchestrator.loop.rules import POLICIES, SPEAKING, LoopPolicy, RulesSolver, make_toolbox
from mnemesh_orchestrator.loop.services import (
    CUSTOM_TOOLS,
    RESTART_SECONDS,
    ContextReader,
    Essentials,
    Gathered,
    RecallWrites,
    RetryPolicy,
    note_of,
)
from mnemesh_orchestrator.loop.state import (
    CalledModel,
    Journals,
    JournalWriter,
    Turn,
    TurnContext,
    TurnState,
    required_format,
)
from mnemesh_orchestrator.loop.step_commit import closing_messages
from mnemesh_orchestrator.loop.step_messages import input_messages, recorded_input
from mnemesh_orchestrator.model.agents import AGENT_TYPES, Agent, AgentTypeSpec, AttachedTool
from mnemesh_orchestrator.model.conversations import (
    ContextWindow,
    Conversation,
    OpenRequest,
    default_conversation_id,
    open_request,
)
from mnemesh_orchestrator.model.events import TurnClaim, UnfinishedDecision
from mnemesh_orchestrator.model.groups import start_of_kept
from mnemesh_orchestrator.model.models import ModelInfo, ResponseFormat, settings_over
from mnemesh_orchestrator.model.rules import ConstrainChildTools, ExitLoop, RequiresApproval, RunFirst, ToolRule
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.runs.leases import LeaseRenewer
from mnemesh_orchestrator.store.runs import RunStore

_log = structlog.get_logger("mnemesh.runs")

_KNOWN_CONVERSATIONS: Final = 1_000

BROADCAST: Final = "send_message_to_all_agents_in_group"

_MAX_RUNS: Final = 100


@dataclass(frozen=True, slots=True)
class _Begun:
    """Reads that have begun, and what they assume: the lease before the run's, and whose blocks the turn sees."""

    reads: asyncio.Future[Essentials]
    epoch: int
    holder_id: str | None


class EarlyReads:
    """Begins the reads of a turn before its run is claimed, and returns them if the claim shows that they are current.

    The holders of a conversation's leases write its window. The reads begin when this process has released the last
    lease that it held, or has seen none. If the claim has the next epoch, no other holder came between them and the
    claim, so they are the same as reads after it. Otherwise, the turn reads again. A crash loses nothing: reads change
    nothing.
    """

    def __init__(self, context: ContextReader, renewer: LeaseRenewer, retry: RetryPolicy) -> None:
        self._context = context
        self._renewer = renewer
        self._retry = retry
        self._begun: dict[str, _Begun] = {}
        self._holders: OrderedDict[str, str | None] = OrderedDict()

    def begin(self, run: Run) -> None:
        """Begins the reads of a new run, if this process executed the last turn of its conversation."""
        epoch = self._renewer.released_epoch(run.conversation_id)
        if epoch is not None and run.conversation_id in self._holders and run.id not in self._begun:
            self._begin(run, epoch)

    def _begin(self, run: Run, epoch: int) -> None:
        """Begins reads that are current if `epoch` was the last one before the run's: 0 if there was none."""
        self.discard(run.id)
        holder_id, context = self._holders.get(run.conversation_id), copy_context()
        context.run(set_remaining, None)  # the run does not end with the caller's deadline
        reads = context.run(self._context.essentials, run.conversation_id, run.agent_id, holder_id)
        reads.add_done_callback(_retrieve)
        self._begun[run.id] = _Begun(reads, epoch, holder_id)

    def discard(self, run_id: str) -> None:
        """Ends the reads of a run that nothing has waited for."""
        begun = self._begun.pop(run_id, None)
        if begun is not None:
            begun.reads.cancel()

    async def essentials(self, claim: TurnClaim) -> Essentials:
        """Returns what a claimed turn needs: what was read early, if it is current, or else new reads.

        Raises:
            Unavailable, DeadlineExceeded: recall or blocks is unavailable.
        """
        conversation = claim.conversation
        self._remember(conversation.id, conversation.holder_id)
        begun = self._begun.pop(claim.run.id, None)
        if begun is not None:
            if (begun.epoch + 1, begun.holder_id) == (claim.lease.epoch, conversation.holder_id):
                return await begun.reads
            begun.reads.cancel()
        return await self._context.essentials(conversation.id, conversation.agent_id, conversation.holder_id)

    async def require(self, run: Run) -> None:
        """Reads what the turn of a new run needs, before the run is stored. The turn uses it if it is current.

        Raises:
            Unavailable, DeadlineExceeded, ServerBusy: recall or blocks does not answer within RESTART_SECONDS.
        """

        async def read() -> None:
            self._begin(run, self._renewer.released_epoch(run.conversation_id) or 0)
            await self._begun[run.id].reads

        try:
            await self._retry.call(read, RESTART_SECONDS)
        except MnemeshError as error:
            self.discard(run.id)
            if isinstance(error, TEMPORARY):
                error.final = True  # It has been asked long enough. The caller must know now.
                raise
            _log.info("essentials_refused", error=error.message)  # they answer: the run shows what is wrong
        except BaseException:
            self.discard(run.id)
            raise

    async def require_services(self, agent_id: str) -> None:
        """Waits until recall and blocks answer about an agent. Raises the errors of `require`."""
        conversation_id = default_conversation_id(agent_id)
        try:
            await self._retry.call(lambda: self._context.essentials(conversation_id, agent_id, None), RESTART_SECONDS)
        except TEMPORARY as error:
            error.final = True
            raise
        except MnemeshError as error:
            _log.info("essentials_refused", error=error.message)

    def _remember(self, conversation_id: str, holder_id: str | None) -> None:
        self._holders[conversation_id] = holder_id
        self._holders.move_to_end(conversation_id)
        if len(self._holders) > _KNOWN_CONVERSATIONS:
            self._holders.popitem(last=False)


def _retrieve(reads: asyncio.Future[Essentials]) -> None:
    """Retrieves an error that nothing waits for, so that asyncio does not log it."""
    if not reads.cancelled():
        reads.exception()


def supervising(agent: Agent) -> Agent:
    """Returns the agent with the tool that asks all members, which it must call first.

    If the agent speaks by a tool, that one follows and ends the turn. These rules replace the agent's own, except for
    those that require a person's approval. The stored record does not change.
    """
    tools = agent.tools if agent.tool(BROADCAST) is not None else (*agent.tools, AttachedTool(BROADCAST))
    rules: tuple[ToolRule, ...] = (RunFirst(BROADCAST),)
    if agent.tool(SPEAKING) is not None:
        rules += (ConstrainChildTools(BROADCAST, (SPEAKING,)), ExitLoop(SPEAKING))
    approvals = tuple(rule for rule in agent.tool_rules if isinstance(rule, RequiresApproval))
    return replace(agent, tools=tools, tool_rules=(*rules, *approvals))


@dataclass(frozen=True, eq=False)
class InputRecorder:
    """Stores inputs in recall, outside of every window.

    A message that a provider refuses would make each later turn fail if it were in the window. A retry adds it there.
    """

    store: RunStore
    recall: RecallClient

    async def record_end(self, run: Run, turn: Turn | None) -> bool:
        """Stores the input of a run that is about to end. Returns False if it is to be stored later.

        Args:
            turn: The turn of the run; None if it did not begin.
        """
        if turn is not None and not turn.state.pending:
            return True
        return await self.record(run)

    async def record(self, run: Run) -> bool:
        """Stores the input of a run. Does nothing if recall has it. Returns False if recall is unavailable or full.

        The input of a group run is stored by the runs of the agents that receive it.
        """
        messages = recorded_input(run) if run.agent_id else ()
        if not messages:
            return True
        try:
            await self.recall.append(f"{run.first_run_id}/input", run.agent_id, messages)
        except TEMPORARY as error:
            _log.warning("input_not_recorded", run_id=run.id, error=error.message)
            return False
        except MnemeshError as error:
            # Recall refuses it for good: the agent was erased.
            _log.info("input_not_recorded", run_id=run.id, error=error.message)
        except Exception:
            # The end of a run is stored whatever its input is.
            _log.exception("input_not_recorded", run_id=run.id)
        return True

    async def record_before(self, claim: TurnClaim, retry: RetryPolicy) -> None:
        """Stores the inputs of earlier runs of a conversation that recall does not have, before a run of it commits.

        Raises:
            Unavailable, DeadlineExceeded, StorageFull, ServerBusy: recall was unavailable for the policy's whole time.
        """
        if claim.has_unrecorded_inputs:
            for run in await self.store.list_unrecorded_inputs_of(claim.run.conversation_id):
                await retry.call(lambda run=run: self._record_and_mark(run))  # type: ignore[misc]

    async def record_missing(self) -> None:
        """Stores the inputs that could not be stored when their runs ended, except where a run is active."""
        try:
            for run in await self.store.list_unrecorded_inputs(_MAX_RUNS):
                await self._record_and_mark(run)
        except MnemeshError as error:
            _log.warning("inputs_not_recorded", error=error.message)

    async def _record_and_mark(self, run: Run) -> None:
        """Stores the input of a run that has ended, and notes that recall has it. Raises the errors of TEMPORARY."""
        with as_principal(Principal(run.organization_id, run.subject_id)):
            if not await self.record(run):
                raise Unavailable("The input of an earlier run cannot be stored now.", resource_id=run.id)
            await self.store.mark_input_recorded(run.id)


@dataclass(frozen=True, eq=False)
class TurnBuilder:
    """Builds the turn of a claimed run."""

    store: RunStore
    journals: Journals
    context: ContextReader
    early: EarlyReads
    recall: RecallClient
    writes: RecallWrites
    models: ModelCatalog
    builtin: BuiltinTools
    inputs: InputRecorder
    retry: RetryPolicy
    clock: Clock

    async def build(self, claim: TurnClaim, journal: JournalWriter, seconds: float | None = None) -> Turn:
        """Returns the turn of a claimed run, ready for its first step. Loads the journal of a run that is resumed.

        Args:
            journal: the journal of the run.
            seconds: a shorter limit than that of a step for the wait for recall and blocks.

        Raises:
            Unavailable, DeadlineExceeded, StorageFull: recall or blocks was unavailable for the whole time.
            ModelUnknown: no provider serves the run's model.
        """
        started, spec = self.clock.monotonic(), AGENT_TYPES[claim.agent.type]
        model = await self._model(claim.run, claim.agent, claim.conversation, spec)
        if claim.resumed:
            await journal.reload()
        gathered = await self._gather(claim, model, seconds)
        await self.inputs.record_before(claim, self.retry)
        open_approval = open_request(gathered.window.messages)
        if not gathered.has_tools and not _can_act(claim.agent, spec):
            gathered = replace(
                gathered,
                custom=await self.retry.call(lambda: self.context.read_tools(claim.agent), seconds),
                notes=tuple(note for note in gathered.notes if note != note_of(CUSTOM_TOOLS)),
            )
        undone = await self._find_undone(claim.run, open_approval)
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
            gathered = replace(gathered, window=await self._trim(claim, gathered.window, seconds))
            open_approval = open_approval and open_request(gathered.window.messages)
        return self._turn(claim, journal, model, gathered, open_approval, started)

    async def _find_undone(self, run: Run, open_approval: OpenRequest | None) -> UnfinishedDecision | None:
        """Returns a decision whose run failed before all its calls had run. This run executes it first."""
        if open_approval is None or (run.resumes is not None and not run.retried_run_ids):
            return None
        undone = await self.store.find_unfinished_decision(run.conversation_id, open_approval.request.id)
        return None if undone is None or undone.resumption.withdrawn else undone

    async def preview(self, claim: TurnClaim) -> Turn:
        """Returns the turn that a claim would begin with. Changes and stores nothing.

        Raises:
            Unavailable, DeadlineExceeded: recall or blocks is unavailable.
            ModelUnknown: no provider serves the run's model.
        """
        run, agent = claim.run, claim.agent
        model = await self._model(run, agent, claim.conversation, AGENT_TYPES[agent.type])
        gathered = await self.context.gather(claim.conversation, agent)
        gathered = replace(gathered, window=replace(gathered.window, messages=_kept(claim, gathered.window)))
        journal = self.journals.open(run, claim.lease)
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
            self.builtin,
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
            essentials = self.early.essentials(claim)
            return await self.context.gather(
                claim.conversation, agent, whole=must_finish, context_window=window, essentials=essentials
            )

        return await self.retry.call(gather, seconds)

    async def _trim(self, claim: TurnClaim, window: ContextWindow, seconds: float | None) -> ContextWindow:
        """Returns the window that the agent's turns begin with. A window that holds messages of this run stays."""
        run, kept = claim.run, _kept(claim, window)
        if len(kept) == len(window.messages) or any(message.run_id == run.id for message in window.messages):
            return window
        lease = claim.lease

        async def trim(epoch: int) -> ContextWindow:
            return await self.recall.replace_context(
                f"{run.id}/{lease.epoch}/autoclear",
                claim.agent.id,
                run.conversation_id,
                window.version,
                [message.id for message in kept],
                run_id=run.id,
                epoch=epoch,
            )

        trimmed = await self.retry.call(lambda: self.writes.write(lease, trim), seconds)
        return self.context.remember(trimmed)

    async def _model(self, run: Run, agent: Agent, conversation: Conversation, spec: AgentTypeSpec) -> CalledModel:
        """Returns the model of a run: the run's override, else the conversation's, else the agent's."""
        settings = agent.model_settings
        for override in (conversation.model_settings, run.config.model_settings):
            settings = settings_over(override, settings) if override is not None else settings
        if settings.inner_thoughts_in_kwargs is None:
            settings = replace(settings, inner_thoughts_in_kwargs=spec.inner_thoughts)
        handle = run.config.override_model or conversation.model or agent.model
        info, client = await self.models.resolve_for_turn(agent.organization_id, handle)
        fallback = None
        if settings.fallback_model and settings.fallback_model != info.handle:
            fallback = await self._fallback(agent.organization_id, settings, settings.fallback_model, info.provider)
        return CalledModel(info, info.effective(settings), client, fallback)

    async def _fallback(
        self, organization_id: str, settings: ModelSettings, handle: str, main_provider: str
    ) -> CalledModel | None:
        """Returns the model that replaces an unavailable one; None if no provider serves it."""
        try:
            info, client = await self.models.resolve_for_turn(organization_id, handle)
        except ModelUnknown:
            _log.warning("fallback_model_unknown", main_provider=main_provider)
            return None
        window = min(settings.context_window or info.context_window, info.context_window)
        settings = replace(settings, context_window=window, fallback_model=None)
        if info.provider != main_provider:
            settings = replace(settings, provider_options=None)  # options are in the words of one API
        return CalledModel(info, info.effective(settings), client)


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
