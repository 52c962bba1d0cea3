"""The parts of the orchestrator, and how they are connected. It chooses no stores and no clients: see `wiring`."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mnemesh_kit.clock import Clock
from mnemesh_kit.ids import IdSource
from mnemesh_kit.secret_variables import SecretVariables

from mnemesh_orchestrator.builtin.agent_messages import AgentMessages
from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.builtin.files import FileTools
from mnemesh_orchestrator.clients.services import Services
from mnemesh_orchestrator.compaction.compactor import model_compactor
from mnemesh_orchestrator.compaction.fact_extraction import FactExtractor
from mnemesh_orchestrator.compaction.stored_memory import StoredMemory
from mnemesh_orchestrator.compaction.tokens import TokenEstimator
from mnemesh_orchestrator.config import Config
from mnemesh_orchestrator.groups.executor import GroupExecutor
from mnemesh_orchestrator.llm.embedders import EmbedderDirectory
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.llm.settings import CredentialSealer
from mnemesh_orchestrator.loop.compaction import TurnCompaction, WindowCompactor, WindowReplacement
from mnemesh_orchestrator.loop.context_reader import ContextReader
from mnemesh_orchestrator.loop.deltas import DeltaLog
from mnemesh_orchestrator.loop.engine import Engine, StepAnswers
from mnemesh_orchestrator.loop.journal import Journals
from mnemesh_orchestrator.loop.metrics import TurnMetrics
from mnemesh_orchestrator.loop.model_call import ModelCaller
from mnemesh_orchestrator.loop.request_assembly import ContextBudget, RequestAssembler, RequestImages
from mnemesh_orchestrator.loop.retry import OptionalServices, RecallWrites, RetryPolicy
from mnemesh_orchestrator.loop.step_commit import StepCommitter
from mnemesh_orchestrator.loop.tool_calls import ToolExecution
from mnemesh_orchestrator.processors import Processors
from mnemesh_orchestrator.prompt.prompts import Prompts
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
from mnemesh_orchestrator.usecases.agents import AgentService
from mnemesh_orchestrator.usecases.approvals import ApprovalService
from mnemesh_orchestrator.usecases.batches import BatchService, CallbackService
from mnemesh_orchestrator.usecases.compactions import CompactionService
from mnemesh_orchestrator.usecases.context_windows import ContextWindowRenderer, ContextWindowService
from mnemesh_orchestrator.usecases.conversations import ConversationService
from mnemesh_orchestrator.usecases.groups import GroupChanges, GroupService
from mnemesh_orchestrator.usecases.identities import IdentityService
from mnemesh_orchestrator.usecases.memory_extractions import MemoryExtractionService, MessageReader
from mnemesh_orchestrator.usecases.partners import PartnerService
from mnemesh_orchestrator.usecases.previews import PreviewService, SystemPromptService
from mnemesh_orchestrator.usecases.providers import ModelService, ProviderService
from mnemesh_orchestrator.usecases.runs import GroupPlanner, RunCancellations, RunService, StepService
from mnemesh_orchestrator.usecases.sleeptime import SleeptimeService
from mnemesh_orchestrator.usecases.text_generation import TextGenerationService
from mnemesh_orchestrator.usecases.tool_runs import ToolRunner

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
    prompts = Prompts(config.data_path / "system_prompts")
    retry = RetryPolicy(clock, config.service_retry_seconds, sleep)
    broker = EventBroker()
    children = ChildRuns(stores.runs, stores.run_relations, broker, processors, clock, config.agent_message_depth)
    messages = AgentMessages(stores.agents, stores.groups, children, clock, config.agent_reply_seconds)
    optional = OptionalServices(retry, config.degrade_seconds)
    builtin = BuiltinTools(
        services.core_memory,
        services.recall,
        services.episodes,
        services.archival,
        clock,
        messages,
        services.web,
        FileTools(services.files, optional),
        services.tools,
        optional,
    )
    context = ContextReader(services, optional)
    requests = RequestAssembler(context, RequestImages(services.files, optional, clock), clock)
    deltas = DeltaLog(stores.deltas)
    journals = Journals(stores.runs, deltas, broker, clock, retry, keeps_traces=config.step_trace_days > 0)
    writes = RecallWrites(stores.leases.overtake)
    metrics = TurnMetrics()
    tools = ToolExecution(builtin, services.tools, secrets, services.core_memory, retry, clock, processors, metrics)
    estimator = TokenEstimator()
    summarizing = model_compactor(models, services.episodes, services.recall, clock, call_seconds=summary_seconds)
    replacement = WindowReplacement(services.recall, writes)
    compactor = WindowCompactor(context, requests, summarizing, estimator, replacement, retry, clock, metrics)
    committer = StepCommitter(services.recall, writes, context, retry)
    budget, compaction = ContextBudget(estimator), TurnCompaction(compactor, clock)
    answers = StepAnswers(requests, budget, compaction, ModelCaller(clock, metrics), clock)
    engine = Engine(context, budget, compaction, answers, tools, committer, retry, clock)
    renewer = LeaseRenewer(stores.leases, clock, instance_id)
    early = EarlyReads(context, renewer, retry)
    inputs = InputRecorder(stores.runs, services.recall)
    turns = TurnBuilder(
        stores.runs, journals, context, early, services.recall, writes, models, builtin, inputs, retry, clock
    )
    transcripts = TranscriptInputs(stores.agents, services.recall, turns, requests, estimator, retry)
    streamer = RunStreamer(stores.runs, stores.deltas, deltas, broker, clock)
    groups = GroupExecutor(stores.runs, stores.run_relations, children, streamer, clock)
    works = Works(turns, engine, compaction, inputs, transcripts, groups)
    execution = RunExecution(
        journals,
        works,
        stores.leases,
        broker,
        children,
        clock,
        metrics,
        config.takeovers_without_progress,
    )
    worker = RunWorker(stores.runs, stores.leases, renewer, broker, deltas, execution, metrics, early)
    lock = ConversationLock(stores.leases, renewer, worker.start_next, ids)
    windows = ContextWindowService(
        stores.agents,
        stores.conversations,
        lock,
        stores.approvals,
        services.recall,
        writes,
        context,
        ContextWindowRenderer(builtin, context, requests, estimator, models),
        clock,
    )
    previews = PreviewService(windows, turns, requests, stores.groups, clock, ids)
    embedders = EmbedderDirectory(config.default_embedder)
    cancellations = RunCancellations(stores.runs, stores.leases, worker, streamer, inputs, clock)
    planner = GroupPlanner(stores.groups, stores.agents)
    runs = RunService(stores.runs, worker, streamer, early, models, clock, ids, processors, cancellations, planner)
    group_changes = GroupChanges(
        stores.groups, stores.agents, services.core_memory, services.recall, cancellations, clock
    )
    parts = AgentParts(services, models, context, requests)
    changes = AgentChanges(models, embedders, prompts, secrets, clock)
    deletion = AgentDeletion(stores.agents, parts, group_changes, worker)
    group_service = GroupService(
        stores.groups, stores.agents, group_changes, services.recall, windows, lock, clock, ids
    )
    partners = PartnerService(
        stores.partners, stores.agents, changes, parts, deletion, group_service, prompts, clock, ids
    )
    creation = AgentCreation(stores.agents, parts, partners, deletion, models, embedders, prompts, secrets, clock, ids)
    lifecycle = AgentLifecycle(stores.agents, creation, partners, deletion, clock)
    approvals = ApprovalService(stores.approvals, runs, worker, clock, config.approval_timeout_seconds)
    children.connect(RunStarter(worker, approvals.cancel, cancellations.cancel_unbegun))
    return Orchestrator(
        agents=AgentService(
            stores.agents,
            services.tools,
            builtin,
            context,
            models,
            stores.approvals,
            stores.groups,
            changes,
            partners,
            secrets,
        ),
        lifecycle=lifecycle,
        agent_parts=parts,
        prompts=SystemPromptService(prompts),
        windows=windows,
        conversations=ConversationService(
            stores.conversations,
            stores.agents,
            services.recall,
            services.core_memory,
            windows,
            lock,
            context,
            models,
            clock,
            ids,
        ),
        previews=previews,
        compactions=CompactionService(stores.agents, lock, replacement, models, previews, context, compactor),
        tool_runner=ToolRunner(stores.agents, builtin, services.tools, secrets, services.core_memory, context, ids),
        generation=TextGenerationService(stores.agents, models, clock, ids),
        runs=runs,
        batches=BatchService(stores.batches, runs, worker, clock, ids),
        callbacks=CallbackService(stores.callbacks, stores.runs, stores.batches, clock),
        child_runs=children,
        steps=StepService(stores.steps),
        sleeptime=SleeptimeService(
            stores.sleeptime, stores.groups, stores.agents, services.recall, transcripts, previews, worker
        ),
        extractions=MemoryExtractionService(
            stores.extractions,
            stores.agents,
            MessageReader(services.recall),
            services.episodes,
            FactExtractor(models, StoredMemory(services.episodes), call_seconds=summary_seconds),
            clock,
            metrics,
            instance_id=instance_id,
            tokens_per_day=config.extraction_tokens_per_day,
        ),
        identities=IdentityService(
            stores.identities, stores.runs, lifecycle, approvals, services.core_memory, services.recall, clock, ids
        ),
        groups=group_service,
        group_changes=group_changes,
        approvals=approvals,
        models=ModelService(stores.providers, models, embedders),
        providers=ProviderService(stores.providers, models, credentials, clock, ids, config.provider_hosts),
        worker=worker,
        inputs=inputs,
        lease_renewer=renewer,
        conversation_lock=lock,
        replica_watcher=ReplicaWatcher(stores.leases, renewer, worker, broker),
        event_broker=broker,
        token_estimator=estimator,
        metrics=metrics,
    )
