"""The parts of the orchestrator, and how they are connected. It chooses no stores and no clients: see `wiring`."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mnemesh_kit.ids import IdSource
from mnemesh_kit.secret_variables import SecretVariables
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.builtin.agent_messages import AgentMessages
from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.builtin.files import FileTools
from mnemesh_orchestrator.clients.services import Services
from mnemesh_orchestrator.compaction.compactor import model_compactor
from mnemesh_orchestrator.compaction.episodic import FactExtractor
from mnemesh_orchestrator.compaction.stored_memory import StoredMemory
from mnemesh_orchestrator.compaction.tokens import TokenEstimator
from mnemesh_orchestrator.config import Config
from mnemesh_orchestrator.groups.executor import GroupExecutor
from mnemesh_orchestrator.llm.embedders import EmbedderDirectory
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.llm.settings import CredentialSealer
from mnemesh_orchestrator.loop.compaction import TurnCompaction, WindowCompactor, WindowReplacement
from mnemesh_orchestrator.loop.engine import Engine, StepAnswers
from mnemesh_orchestrator.loop.journal import Journals
from mnemesh_orchestrator.loop.metrics import TurnMetrics
from mnemesh_orchestrator.loop.model_call import ModelCaller
from mnemesh_orchestrator.loop.request_assembly import ContextBudget, RequestAssembler, RequestImages
from mnemesh_orchestrator.loop.services import ContextReader, OptionalServices, RecallWrites, RetryPolicy
from mnemesh_orchestrator.loop.step_commit import StepCommitter
from mnemesh_orchestrator.loop.step_messages import DeltaLog
from mnemesh_orchestrator.loop.tool_calls import ToolExecution
from mnemesh_orchestrator.processors import Processors
from mnemesh_orchestrator.prompt.assembly import Prompts
from mnemesh_orchestrator.runs.child_runs import ChildRuns, RunStarter
from mnemesh_orchestrator.runs.execution import RunExecution, Works
from mnemesh_orchestrator.runs.leases import ConversationLock, LeaseRenewer
from mnemesh_orchestrator.runs.run_stream import EventBroker, RunStreamer
from mnemesh_orchestrator.runs.transcript_inputs import TranscriptInputs
from mnemesh_orchestrator.runs.turn_builder import EarlyReads, InputRecorder, TurnBuilder
from mnemesh_orchestrator.runs.worker import ReplicaWatcher, RunWorker
from mnemesh_orchestrator.store.stores import Stores
from mnemesh_orchestrator.usecases.agent_creation import AgentCreation, AgentLifecycle
from mnemesh_orchestrator.usecases.agent_parts import AgentChanges, AgentDeletion, AgentParts
from mnemesh_orchestrator.usecases.agents import AgentService, TextGenerationService, ToolRunner
from mnemesh_orchestrator.usecases.approvals import ApprovalService
from mnemesh_orchestrator.usecases.batches import BatchService, CallbackService
from mnemesh_orchestrator.usecases.compactions import CompactionService
from mnemesh_orchestrator.usecases.context_windows import (
    ContextWindowRenderer,
    ContextWindowService,
    PreviewService,
    SystemPromptService,
)
from mnemesh_orchestrator.usecases.conversations import ConversationService
from mnemesh_orchestrator.usecases.groups import GroupChanges, GroupService
from mnemesh_orchestrator.usecases.identities import IdentityService
from mnemesh_orchestrator.usecases.memory_extractions import MemoryExtractionService, MessageReader
from mnemesh_orchestrator.usecases.partners import PartnerService
from mnemesh_orchestrator.usecases.providers import ModelService, ProviderService
from mnemesh_orchestrator.usecases.runs import GroupPlanner, RunCancellations, RunService, StepService
from mnemesh_orchestrator.usecases.sleeptime import SleeptimeService

SUMMARY_SECONDS = 60.0
"""The time limit of one call to a summary model."""


@dataclass(frozen=True, slots=True)
class Orchestrator:
    """The use cases, and the workers that run in the background."""

    agents: AgentService
    lifecycle: AgentLifecycle
    agent_parts: AgentParts
    prompts: SystemPromptService
    windows: ContextWindowService
    conversations: ConversationService
    previews: PreviewService
    compactions: CompactionService
    tool_runner: ToolRunner
    generation: TextGenerationService
    runs: RunService
    batches: BatchService
    callbacks: CallbackService
    child_runs: ChildRuns
    steps: StepService
    sleeptime: SleeptimeService
    extractions: MemoryExtractionService
    identities: IdentityService
    groups: GroupService
    group_changes: GroupChanges
    approvals: ApprovalService
    models: ModelService
    providers: ProviderService
    worker: RunWorker
    inputs: InputRecorder
    lease_renewer: LeaseRenewer
    conversation_lock: ConversationLock
    replica_watcher: ReplicaWatcher
    event_broker: EventBroker
    token_estimator: TokenEstimator
    metrics: TurnMetrics


@dataclass(frozen=True, slots=True)
class _Base:
    """What all parts share."""

    config: Config
    stores: Stores
    services: Services
    models: ModelCatalog
    secrets: SecretVariables
    processors: Processors
    instance_id: str
    clock: Clock
    ids: IdSource
    retry: RetryPolicy
    summary_seconds: float
    prompts: Prompts
    embedders: EmbedderDirectory
    broker: EventBroker
    estimator: TokenEstimator
    metrics: TurnMetrics


@dataclass(frozen=True, slots=True)
class _Tools:
    """The built-in tools, and the runs that they start."""

    children: ChildRuns
    optional: OptionalServices
    builtin: BuiltinTools


@dataclass(frozen=True, slots=True)
class _Loop:
    """The steps of a turn."""

    context: ContextReader
    requests: RequestAssembler
    writes: RecallWrites
    replacement: WindowReplacement
    compactor: WindowCompactor
    compaction: TurnCompaction
    engine: Engine


@dataclass(frozen=True, slots=True)
class _Runs:
    """The execution of runs in this process."""

    renewer: LeaseRenewer
    early: EarlyReads
    inputs: InputRecorder
    turns: TurnBuilder
    transcripts: TranscriptInputs
    streamer: RunStreamer
    worker: RunWorker
    lock: ConversationLock
    cancellations: RunCancellations
    service: RunService
    approvals: ApprovalService


@dataclass(frozen=True, slots=True)
class _Agents:
    """The use cases of agents and of their groups."""

    renderer: ContextWindowRenderer
    windows: ContextWindowService
    previews: PreviewService
    parts: AgentParts
    changes: AgentChanges
    group_changes: GroupChanges
    groups: GroupService
    partners: PartnerService
    lifecycle: AgentLifecycle


def build(
    config: Config,
    stores: Stores,
    services: Services,
    *,
    models: ModelCatalog,
    credentials: CredentialSealer,
    secrets: SecretVariables,
    processors: Processors,
    instance_id: str,
    clock: Clock,
    ids: IdSource,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    summary_seconds: float = SUMMARY_SECONDS,
) -> Orchestrator:
    """Connects the parts of the orchestrator. The process and the tests both use this function.

    Args:
        config: the settings.
        stores: the orchestrator's own stores.
        services: the other services.
        models: resolves the handles of models.
        credentials: seals and opens the credentials of providers.
        secrets: encrypts and decrypts the environment variables of agents.
        processors: the processors of inputs and tool results.
        instance_id: identifies this process as a lease holder.
        clock: the clock of every part.
        ids: creates the ids of new resources.
        sleep: waits between two attempts to call a service.
        summary_seconds: the time limit of one call to a summary model.
    """
    base = _Base(
        config=config,
        stores=stores,
        services=services,
        models=models,
        secrets=secrets,
        processors=processors,
        instance_id=instance_id,
        clock=clock,
        ids=ids,
        retry=RetryPolicy(clock, config.service_retry_seconds, sleep),
        summary_seconds=summary_seconds,
        prompts=Prompts(config.data_path / "system_prompts"),
        embedders=EmbedderDirectory(config.default_embedder),
        broker=EventBroker(),
        estimator=TokenEstimator(),
        metrics=TurnMetrics(),
    )
    tools = _build_tools(base)
    loop = _build_loop(base, tools)
    runs = _build_runs(base, tools, loop)
    agents = _build_agents(base, tools, loop, runs)
    providers = ProviderService(stores.providers, models, credentials, clock, ids, config.provider_hosts)
    return _connected(base, tools, loop, runs, agents, providers)


def _build_tools(base: _Base) -> _Tools:
    config, stores, services, clock = base.config, base.stores, base.services, base.clock
    children = ChildRuns(
        stores.runs, stores.run_relations, base.broker, base.processors, clock, config.agent_message_depth
    )
    optional = OptionalServices(base.retry, config.degrade_seconds)
    builtin = BuiltinTools(
        blocks=services.core_memory,
        recall=services.recall,
        episodes=services.episodes,
        archival=services.archival,
        clock=clock,
        messages=AgentMessages(stores.agents, stores.groups, children, clock, config.agent_reply_seconds),
        web_port=services.web,
        files=FileTools(services.files, optional),
        tools=services.tools,
        optional=optional,
    )
    return _Tools(children, optional, builtin)


def _build_loop(base: _Base, tools: _Tools) -> _Loop:
    services, clock, retry, metrics = base.services, base.clock, base.retry, base.metrics
    context = ContextReader(services, tools.optional)
    requests = RequestAssembler(context, RequestImages(services.files, tools.optional, clock), clock)
    writes = RecallWrites(base.stores.leases.overtake)
    replacement = WindowReplacement(services.recall, writes)
    compactor = WindowCompactor(
        context=context,
        requests=requests,
        compactor=model_compactor(
            base.models, services.episodes, services.recall, clock, call_seconds=base.summary_seconds
        ),
        estimator=base.estimator,
        replacement=replacement,
        retry=retry,
        clock=clock,
        metrics=metrics,
    )
    budget, compaction = ContextBudget(base.estimator), TurnCompaction(compactor, clock)
    engine = Engine(
        context=context,
        budget=budget,
        compaction=compaction,
        answers=StepAnswers(requests, budget, compaction, ModelCaller(clock, metrics), clock),
        tools=ToolExecution(
            builtin=tools.builtin,
            tools=services.tools,
            secrets=base.secrets,
            core_memory=services.core_memory,
            retry=retry,
            clock=clock,
            processors=base.processors,
            metrics=metrics,
        ),
        committer=StepCommitter(services.recall, writes, context, retry),
        retry=retry,
        clock=clock,
    )
    return _Loop(context, requests, writes, replacement, compactor, compaction, engine)


def _build_runs(base: _Base, tools: _Tools, loop: _Loop) -> _Runs:
    config, stores, recall, clock, retry = base.config, base.stores, base.services.recall, base.clock, base.retry
    deltas = DeltaLog(stores.deltas)
    journals = Journals(stores.runs, deltas, base.broker, clock, retry, keeps_traces=config.step_trace_days > 0)
    renewer = LeaseRenewer(stores.leases, clock, base.instance_id)
    early = EarlyReads(loop.context, renewer, retry)
    inputs = InputRecorder(stores.runs, recall)
    turns = TurnBuilder(
        store=stores.runs,
        journals=journals,
        context=loop.context,
        early=early,
        recall=recall,
        writes=loop.writes,
        models=base.models,
        builtin=tools.builtin,
        inputs=inputs,
        retry=retry,
        clock=clock,
    )
    transcripts = TranscriptInputs(stores.agents, recall, turns, loop.requests, base.estimator, retry)
    streamer = RunStreamer(stores.runs, stores.deltas, deltas, base.broker, clock)
    works = Works(
        turns=turns,
        engine=loop.engine,
        compaction=loop.compaction,
        inputs=inputs,
        transcripts=transcripts,
        groups=GroupExecutor(stores.runs, stores.run_relations, tools.children, streamer, clock),
    )
    execution = RunExecution(
        journals=journals,
        works=works,
        leases=stores.leases,
        broker=base.broker,
        children=tools.children,
        clock=clock,
        metrics=base.metrics,
        max_stalled_claims=config.takeovers_without_progress,
    )
    worker = RunWorker(stores.runs, stores.leases, renewer, base.broker, deltas, execution, base.metrics, early)
    cancellations = RunCancellations(stores.runs, stores.leases, worker, streamer, inputs, clock)
    service = RunService(
        store=stores.runs,
        worker=worker,
        streamer=streamer,
        early=early,
        models=base.models,
        clock=clock,
        ids=base.ids,
        processors=base.processors,
        cancellations=cancellations,
        planner=GroupPlanner(stores.groups, stores.agents),
    )
    approvals = ApprovalService(stores.approvals, service, worker, clock, config.approval_timeout_seconds)
    tools.children.connect(RunStarter(worker, approvals.cancel, cancellations.cancel_unbegun))
    return _Runs(
        renewer=renewer,
        early=early,
        inputs=inputs,
        turns=turns,
        transcripts=transcripts,
        streamer=streamer,
        worker=worker,
        lock=ConversationLock(stores.leases, renewer, worker.start_next, base.ids),
        cancellations=cancellations,
        service=service,
        approvals=approvals,
    )


def _build_agents(base: _Base, tools: _Tools, loop: _Loop, runs: _Runs) -> _Agents:
    stores, services, models, clock, ids = base.stores, base.services, base.models, base.clock, base.ids
    renderer = ContextWindowRenderer(tools.builtin, loop.context, loop.requests, base.estimator, models)
    windows = ContextWindowService(
        agents=stores.agents,
        conversations=stores.conversations,
        lock=runs.lock,
        approvals=stores.approvals,
        recall=services.recall,
        writes=loop.writes,
        context=loop.context,
        renderer=renderer,
        clock=clock,
    )
    group_changes = GroupChanges(
        stores.groups, stores.agents, services.core_memory, services.recall, runs.cancellations, clock
    )
    groups = GroupService(
        store=stores.groups,
        agents=stores.agents,
        changes=group_changes,
        recall=services.recall,
        windows=windows,
        lock=runs.lock,
        clock=clock,
        ids=ids,
    )
    parts = AgentParts(services, models, loop.context, loop.requests, renderer)
    changes = AgentChanges(models, base.embedders, base.prompts, base.secrets, clock)
    deletion = AgentDeletion(stores.agents, parts, group_changes, runs.worker)
    partners = PartnerService(
        store=stores.partners,
        agents=stores.agents,
        changes=changes,
        parts=parts,
        deletion=deletion,
        groups=groups,
        prompts=base.prompts,
        clock=clock,
        ids=ids,
    )
    creation = AgentCreation(
        store=stores.agents,
        parts=parts,
        partners=partners,
        deletion=deletion,
        models=models,
        embedders=base.embedders,
        prompts=base.prompts,
        secrets=base.secrets,
        clock=clock,
        ids=ids,
    )
    return _Agents(
        renderer=renderer,
        windows=windows,
        previews=PreviewService(windows, runs.turns, loop.requests, stores.groups, clock, ids),
        parts=parts,
        changes=changes,
        group_changes=group_changes,
        groups=groups,
        partners=partners,
        lifecycle=AgentLifecycle(stores.agents, creation, partners, deletion, clock),
    )


def _connected(
    base: _Base, tools: _Tools, loop: _Loop, runs: _Runs, agents: _Agents, providers: ProviderService
) -> Orchestrator:
    stores, services, models, clock, ids = base.stores, base.services, base.models, base.clock, base.ids
    return Orchestrator(
        agents=AgentService(
            store=stores.agents,
            tools=services.tools,
            builtin=tools.builtin,
            context=loop.context,
            models=models,
            approvals=stores.approvals,
            groups=stores.groups,
            changes=agents.changes,
            partners=agents.partners,
            secrets=base.secrets,
            renderer=agents.renderer,
        ),
        lifecycle=agents.lifecycle,
        agent_parts=agents.parts,
        prompts=SystemPromptService(base.prompts),
        windows=agents.windows,
        conversations=ConversationService(
            store=stores.conversations,
            agents=stores.agents,
            recall=services.recall,
            core_memory=services.core_memory,
            windows=agents.windows,
            lock=runs.lock,
            context=loop.context,
            models=models,
            clock=clock,
            ids=ids,
        ),
        previews=agents.previews,
        compactions=CompactionService(
            agents=stores.agents,
            lock=runs.lock,
            replacement=loop.replacement,
            models=models,
            previews=agents.previews,
            context=loop.context,
            compactor=loop.compactor,
        ),
        tool_runner=ToolRunner(
            agents=stores.agents,
            builtin=tools.builtin,
            tools=services.tools,
            secrets=base.secrets,
            core_memory=services.core_memory,
            context=loop.context,
            ids=ids,
        ),
        generation=TextGenerationService(stores.agents, models, clock, ids),
        runs=runs.service,
        batches=BatchService(stores.batches, runs.service, runs.worker, clock, ids),
        callbacks=CallbackService(stores.callbacks, stores.runs, stores.batches, clock),
        child_runs=tools.children,
        steps=StepService(stores.steps),
        sleeptime=SleeptimeService(
            store=stores.sleeptime,
            groups=stores.groups,
            agents=stores.agents,
            recall=services.recall,
            transcripts=runs.transcripts,
            previews=agents.previews,
            worker=runs.worker,
        ),
        extractions=MemoryExtractionService(
            store=stores.extractions,
            agents=stores.agents,
            reader=MessageReader(services.recall),
            episodes=services.episodes,
            extractor=FactExtractor(models, StoredMemory(services.episodes), call_seconds=base.summary_seconds),
            clock=clock,
            metrics=base.metrics,
            instance_id=base.instance_id,
            tokens_per_day=base.config.extraction_tokens_per_day,
        ),
        identities=IdentityService(
            store=stores.identities,
            runs=stores.runs,
            lifecycle=agents.lifecycle,
            approvals=runs.approvals,
            blocks=services.core_memory,
            recall=services.recall,
            clock=clock,
            ids=ids,
        ),
        groups=agents.groups,
        group_changes=agents.group_changes,
        approvals=runs.approvals,
        models=ModelService(stores.providers, models, base.embedders),
        providers=providers,
        worker=runs.worker,
        inputs=runs.inputs,
        lease_renewer=runs.renewer,
        conversation_lock=runs.lock,
        replica_watcher=ReplicaWatcher(stores.leases, runs.renewer, runs.worker, base.broker),
        event_broker=base.broker,
        token_estimator=base.estimator,
        metrics=base.metrics,
    )
