"""Builds the service from its parts. Only this module chooses implementations."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from mnemesh.agents.v1 import (
    agents_service_pb2_grpc,
    conversations_service_pb2_grpc,
    groups_service_pb2_grpc,
    identities_service_pb2_grpc,
    models_service_pb2_grpc,
    runs_service_pb2_grpc,
)
from mnemesh_kit.background import periodic
from mnemesh_kit.channels import Channels
from mnemesh_kit.clock import Clock, SystemClock
from mnemesh_kit.idempotency import RETENTION
from mnemesh_kit.ids import IdSource, RandomIds
from mnemesh_kit.metrics import Gauge
from mnemesh_kit.principal import Role
from mnemesh_kit.server import Assembly
from mnemesh_kit.services import service
from mnemesh_kit.sql import Database, open_database

from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.clients.archival import ArchivalClient
from mnemesh_orchestrator.clients.blocks import BlocksClient
from mnemesh_orchestrator.clients.episodes import EpisodesClient
from mnemesh_orchestrator.clients.recall import RecallClient
from mnemesh_orchestrator.clients.tools import ToolsClient
from mnemesh_orchestrator.compaction.compactor import model_compactor
from mnemesh_orchestrator.compaction.tokens import TokenEstimator
from mnemesh_orchestrator.compaction.window_replacement import WindowReplacement
from mnemesh_orchestrator.config import Config
from mnemesh_orchestrator.errors import REMOTE
from mnemesh_orchestrator.llm.credentials import CredentialSealer
from mnemesh_orchestrator.llm.embedders import EmbedderDirectory
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.llm.registry import Providers
from mnemesh_orchestrator.loop.context_budget import ContextBudget
from mnemesh_orchestrator.loop.context_builder import ContextBuilder
from mnemesh_orchestrator.loop.delta_log import DeltaLog
from mnemesh_orchestrator.loop.engine import Engine
from mnemesh_orchestrator.loop.journal import Journals
from mnemesh_orchestrator.loop.metrics import TurnMetrics
from mnemesh_orchestrator.loop.model_call import ModelCaller
from mnemesh_orchestrator.loop.optional_services import OptionalServices
from mnemesh_orchestrator.loop.retry import RetryPolicy
from mnemesh_orchestrator.loop.step_commit import StepCommitter
from mnemesh_orchestrator.loop.tool_calls import ToolExecution
from mnemesh_orchestrator.loop.window_compaction import WindowCompactor
from mnemesh_orchestrator.ports import Services
from mnemesh_orchestrator.ports.recall_writes import RecallWrites
from mnemesh_orchestrator.processors.chain import Processors
from mnemesh_orchestrator.processors.loading import INPUT_GROUP, TOOL_RESULT_GROUP, load
from mnemesh_orchestrator.prompt.prompts import Prompts
from mnemesh_orchestrator.rpc.agents import AgentsServicer
from mnemesh_orchestrator.rpc.conversations import ConversationsServicer
from mnemesh_orchestrator.rpc.identities import IdentitiesServicer
from mnemesh_orchestrator.rpc.models import ModelsServicer
from mnemesh_orchestrator.rpc.runs import RunsServicer
from mnemesh_orchestrator.runs.conversation_lock import ConversationLock
from mnemesh_orchestrator.runs.event_broker import EventBroker
from mnemesh_orchestrator.runs.execution import RunExecution
from mnemesh_orchestrator.runs.input_recorder import InputRecorder
from mnemesh_orchestrator.runs.instance import Instance
from mnemesh_orchestrator.runs.lease_renewal import LeaseRenewer
from mnemesh_orchestrator.runs.replica_watcher import ReplicaWatcher
from mnemesh_orchestrator.runs.run_stream import RunStreamer
from mnemesh_orchestrator.runs.turn_builder import TurnBuilder
from mnemesh_orchestrator.runs.worker import RunWorker
from mnemesh_orchestrator.sealing import SecretBox
from mnemesh_orchestrator.store.base.stores import Stores
from mnemesh_orchestrator.store.sql.queue_counts import QueueCounts
from mnemesh_orchestrator.store.sql.run_retention import SqlRunRetention
from mnemesh_orchestrator.store.sql.stores import sql_stores
from mnemesh_orchestrator.usecases.agent_lifecycle import AgentLifecycle
from mnemesh_orchestrator.usecases.agents import AgentService
from mnemesh_orchestrator.usecases.approvals import ApprovalService
from mnemesh_orchestrator.usecases.compactions import CompactionService
from mnemesh_orchestrator.usecases.context_windows import ContextWindowService
from mnemesh_orchestrator.usecases.conversations import ConversationService
from mnemesh_orchestrator.usecases.identities import IdentityService
from mnemesh_orchestrator.usecases.models import ModelService
from mnemesh_orchestrator.usecases.previews import PreviewService
from mnemesh_orchestrator.usecases.providers import ProviderService
from mnemesh_orchestrator.usecases.run_cancellations import RunCancellations
from mnemesh_orchestrator.usecases.runs import RunService
from mnemesh_orchestrator.usecases.steps import StepService
from mnemesh_orchestrator.usecases.system_prompts import SystemPromptService
from mnemesh_orchestrator.usecases.tool_runs import ToolRunner

PURGE_SECONDS = 3600.0
COUNT_SECONDS = 15.0
UNFINISHED_SECONDS = 15.0
LATE_APPROVALS_SECONDS = 5.0
SHARED_RECOVERY_SECONDS = 1.0
"""How often a replica looks for runs of other replicas whose lease has expired."""
SUMMARY_SECONDS = 60.0
"""The time limit of one call to a summary model."""


@dataclass(frozen=True, slots=True)
class Orchestrator:
    """The use cases, and the workers that run in the background."""

    agents: AgentService
    lifecycle: AgentLifecycle
    prompts: SystemPromptService
    windows: ContextWindowService
    conversations: ConversationService
    previews: PreviewService
    compactions: CompactionService
    tool_runner: ToolRunner
    runs: RunService
    steps: StepService
    identities: IdentityService
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
        processors: the processors of inputs and tool results.
        instance_id: identifies this process as a lease holder.
        clock: the clock of every part.
        ids: creates the ids of new resources.
        sleep: waits between two attempts to call a service.
        summary_seconds: the time limit of one call to a summary model.
    """
    prompts = Prompts(config.data_path / "system_prompts")
    retry = RetryPolicy(clock, config.service_retry_seconds, sleep)
    builtin = BuiltinTools(services.core_memory, services.recall, services.episodes, services.archival, clock)
    optional = OptionalServices(retry, config.degrade_seconds)
    context = ContextBuilder(services.recall, services.core_memory, services.archival, services.tools, optional, clock)
    broker, deltas = EventBroker(), DeltaLog(stores.deltas)
    journals = Journals(stores.runs, deltas, broker, clock, retry, keeps_traces=config.step_trace_days > 0)
    writes = RecallWrites(stores.leases.overtake)
    metrics = TurnMetrics()
    tools = ToolExecution(builtin, services.tools, services.core_memory, retry, clock, processors, metrics)
    estimator = TokenEstimator()
    summarizing = model_compactor(models, services.episodes, services.recall, clock, call_seconds=summary_seconds)
    replacement = WindowReplacement(services.recall, writes)
    compactor = WindowCompactor(context, summarizing, estimator, replacement, retry, clock, metrics)
    committer = StepCommitter(services.recall, writes, context, retry)
    engine = Engine(
        context, ContextBudget(estimator), compactor, ModelCaller(clock, metrics), tools, committer, retry, clock
    )
    turns = TurnBuilder(stores.runs, journals, context, services.recall, writes, models, builtin, retry, clock)
    renewer = LeaseRenewer(stores.leases, clock, instance_id)
    inputs = InputRecorder(stores.runs, services.recall)
    execution = RunExecution(
        journals, turns, engine, stores.leases, broker, inputs, clock, metrics, config.takeovers_without_progress
    )
    worker = RunWorker(stores.runs, stores.leases, renewer, broker, deltas, execution, metrics)
    lock = ConversationLock(stores.leases, renewer, worker.start_next, ids)
    windows = ContextWindowService(
        stores.agents,
        stores.conversations,
        lock,
        stores.approvals,
        services.recall,
        writes,
        builtin,
        context,
        estimator,
        clock,
    )
    previews = PreviewService(windows, turns, context, clock, ids)
    embedders = EmbedderDirectory(config.default_embedder)
    lifecycle = AgentLifecycle(stores.agents, services, models, embedders, prompts, context, worker, clock, ids)
    streamer = RunStreamer(stores.runs, stores.deltas, deltas, broker, clock)
    cancellations = RunCancellations(stores.runs, stores.leases, worker, streamer, inputs, clock)
    runs = RunService(stores.runs, worker, streamer, models, clock, ids, processors, cancellations)
    approvals = ApprovalService(stores.approvals, runs, worker, clock, config.approval_timeout_seconds)
    return Orchestrator(
        agents=AgentService(
            stores.agents, services.tools, builtin, context, models, embedders, prompts, clock, stores.approvals
        ),
        lifecycle=lifecycle,
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
        tool_runner=ToolRunner(stores.agents, builtin, services.tools, services.core_memory, context, ids),
        runs=runs,
        steps=StepService(stores.steps),
        identities=IdentityService(
            stores.identities, stores.runs, lifecycle, approvals, services.core_memory, services.recall, clock, ids
        ),
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


async def assemble(config: Config, *, clock: Clock | None = None, ids: IdSource | None = None) -> Assembly:
    """Returns the orchestrator over its migrated database, ready to start."""
    clock, ids = clock or SystemClock(), ids or RandomIds()
    is_sqlite = config.database.startswith("sqlite")
    instance = Instance(config.data_path / "orchestrator.owner", alone=is_sqlite)
    database = await open_database(config, "mnemesh_orchestrator")
    channels = Channels(errors=REMOTE, auth_key_file=config.auth_key_file, role=Role.SERVICE)
    stores = sql_stores(database, clock)
    credentials = CredentialSealer(
        SecretBox(config.secrets_key_file, config.data_path / "secrets.key" if is_sqlite else None)
    )
    models = ModelCatalog(
        Providers(config.language_models), stores.providers, credentials.open_settings, is_shared=not is_sqlite
    )
    orchestrator = build(
        config,
        stores,
        _services(config, channels),
        models=models,
        credentials=credentials,
        processors=Processors(
            load(INPUT_GROUP, config.input_processors, "MNEMESH_INPUT_PROCESSORS"),
            load(TOOL_RESULT_GROUP, config.tool_result_processors, "MNEMESH_TOOL_RESULT_PROCESSORS"),
            config.processor_seconds,
        ),
        instance_id=instance.id,
        clock=clock,
        ids=ids,
    )
    await orchestrator.lease_renewer.leave_queues()
    counts = QueueCounts(database)
    return Assembly(
        name="orchestrator",
        servicers=_servicers(orchestrator),
        service_names=service("orchestrator").proto_services,
        background=[
            *_recovery(orchestrator, is_shared=not is_sqlite),
            orchestrator.lease_renewer.renew,
            models.watch,
            periodic(UNFINISHED_SECONDS, orchestrator.lifecycle.finish_all),
            periodic(UNFINISHED_SECONDS, orchestrator.conversations.finish_all),
            periodic(UNFINISHED_SECONDS, orchestrator.inputs.record_missing),
            periodic(LATE_APPROVALS_SECONDS, orchestrator.approvals.expire),
            periodic(PURGE_SECONDS, _purge(config, database, stores, clock)),
            *([periodic(COUNT_SECONDS, counts.refresh)] if config.metrics_port is not None else []),
        ],
        metrics=[*orchestrator.metrics.all, *_gauges(orchestrator, counts)],
        close=[instance.close, database.close, channels.close, models.close, orchestrator.worker.stop],
    )


def _gauges(orchestrator: Orchestrator, counts: QueueCounts) -> list[Gauge]:
    return [
        Gauge("mnemesh_runs_active", "Runs that this process executes.", lambda: orchestrator.worker.active_runs),
        Gauge(
            "mnemesh_runs_waiting",
            "Stored runs that wait for their conversation, of all replicas; read every 15 seconds.",
            lambda: counts.runs_waiting,
        ),
        Gauge(
            "mnemesh_approvals_waiting",
            "Approvals that wait for a decision, of all replicas; read every 15 seconds.",
            lambda: counts.approvals_waiting,
        ),
        Gauge(
            "mnemesh_prompt_estimate_error",
            "Mean error of the estimated size of requests to models, as a share of the size that providers "
            "counted, over the last hundred answers.",
            lambda: orchestrator.token_estimator.mean_error,
        ),
    ]


def _servicers(orchestrator: Orchestrator) -> list[tuple[Callable[[Any, Any], None], Any]]:
    return [
        (
            agents_service_pb2_grpc.add_AgentServiceServicer_to_server,
            AgentsServicer(
                orchestrator.agents,
                orchestrator.lifecycle,
                orchestrator.windows,
                orchestrator.previews,
                orchestrator.tool_runner,
                orchestrator.compactions,
                orchestrator.prompts,
            ),
        ),
        (
            runs_service_pb2_grpc.add_RunServiceServicer_to_server,
            RunsServicer(orchestrator.runs, orchestrator.approvals, orchestrator.steps),
        ),
        (
            models_service_pb2_grpc.add_ModelServiceServicer_to_server,
            ModelsServicer(orchestrator.models, orchestrator.providers),
        ),
        (
            conversations_service_pb2_grpc.add_ConversationServiceServicer_to_server,
            ConversationsServicer(orchestrator.conversations),
        ),
        (
            identities_service_pb2_grpc.add_IdentityServiceServicer_to_server,
            IdentitiesServicer(orchestrator.identities),
        ),
        # Groups are in the contract. The generated servicer answers UNIMPLEMENTED.
        (groups_service_pb2_grpc.add_GroupServiceServicer_to_server, groups_service_pb2_grpc.GroupServiceServicer()),
    ]


def _services(config: Config, channels: Channels) -> Services:
    return Services(
        BlocksClient(channels.channel(config.blocks_target)),
        RecallClient(channels.channel(config.recall_target)),
        EpisodesClient(channels.channel(config.recall_target)),
        ArchivalClient(channels.channel(config.archival_target)),
        ToolsClient(channels.channel(config.tools_target)),
    )


def _recovery(orchestrator: Orchestrator, *, is_shared: bool) -> tuple[Callable[[], Awaitable[None]], ...]:
    """The tasks that find work in the database. SQLite serves one process, which knows its own work."""
    if not is_shared:
        return (orchestrator.worker.recover,)
    return (partial(orchestrator.worker.recover, SHARED_RECOVERY_SECONDS), orchestrator.replica_watcher.look)


def _purge(config: Config, database: Database, stores: Stores, clock: Clock) -> Callable[[], Awaitable[None]]:
    retention = SqlRunRetention(database)

    async def purge() -> None:
        now = clock.now()
        await stores.runs.purge_requests(now - RETENTION)
        await stores.steps.purge_traces(now - timedelta(days=config.step_trace_days))
        if config.run_days:
            await retention.purge_runs(now - timedelta(days=config.run_days))

    return purge
