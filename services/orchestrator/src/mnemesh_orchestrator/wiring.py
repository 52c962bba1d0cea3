"""Builds the service from its parts; the only place that picks them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

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
from mnemesh_kit.metrics import Gauge as Metric
from mnemesh_kit.server import Assembly
from mnemesh_kit.sql import Database

from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.clients.archival import ArchivalClient
from mnemesh_orchestrator.clients.blocks import BlocksClient
from mnemesh_orchestrator.clients.episodes import EpisodesClient
from mnemesh_orchestrator.clients.recall import RecallClient
from mnemesh_orchestrator.clients.tools import ToolsClient
from mnemesh_orchestrator.compaction.compactor import model_compactor
from mnemesh_orchestrator.compaction.token_estimator import TokenEstimator
from mnemesh_orchestrator.compaction.window_replacement import WindowReplacement
from mnemesh_orchestrator.config import Config
from mnemesh_orchestrator.errors import REMOTE
from mnemesh_orchestrator.llm.credentials import CredentialSafe
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.llm.registry import Providers
from mnemesh_orchestrator.loop.context_budget import ContextBudget
from mnemesh_orchestrator.loop.context_builder import ContextBuilder
from mnemesh_orchestrator.loop.delta_log import DeltaLog
from mnemesh_orchestrator.loop.engine import Engine
from mnemesh_orchestrator.loop.journal import JournalWriter
from mnemesh_orchestrator.loop.retry import RetryPolicy
from mnemesh_orchestrator.loop.tool_calls import ToolExecution
from mnemesh_orchestrator.ports import Services
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
from mnemesh_orchestrator.runs.instance import Instance
from mnemesh_orchestrator.runs.lease_renewal import LeaseRenewer
from mnemesh_orchestrator.runs.replica_watcher import ReplicaWatcher
from mnemesh_orchestrator.runs.run_stream import RunStreamer
from mnemesh_orchestrator.runs.turn_builder import TurnBuilder
from mnemesh_orchestrator.runs.worker import RunWorker
from mnemesh_orchestrator.sealing import SecretBox
from mnemesh_orchestrator.store.sql.agents import SqlAgentStore
from mnemesh_orchestrator.store.sql.approvals import SqlApprovalStore
from mnemesh_orchestrator.store.sql.conversations import SqlConversationStore
from mnemesh_orchestrator.store.sql.deltas import SqlDeltaStore
from mnemesh_orchestrator.store.sql.identities import SqlIdentityStore
from mnemesh_orchestrator.store.sql.lease_times import LeaseTimes
from mnemesh_orchestrator.store.sql.leases import SqlLeaseStore
from mnemesh_orchestrator.store.sql.providers import SqlProviderStore
from mnemesh_orchestrator.store.sql.retention import SqlRetention
from mnemesh_orchestrator.store.sql.runs import SqlRunStore
from mnemesh_orchestrator.store.sql.steps import SqlStepStore
from mnemesh_orchestrator.usecases.agent_lifecycle import AgentLifecycle
from mnemesh_orchestrator.usecases.agents import AgentService
from mnemesh_orchestrator.usecases.approvals import ApprovalService
from mnemesh_orchestrator.usecases.compactions import CompactionService
from mnemesh_orchestrator.usecases.conversations import ConversationService
from mnemesh_orchestrator.usecases.identities import IdentityService
from mnemesh_orchestrator.usecases.models import ModelService
from mnemesh_orchestrator.usecases.previews import PreviewService, ToolRunner
from mnemesh_orchestrator.usecases.providers import ProviderService
from mnemesh_orchestrator.usecases.runs import RunService
from mnemesh_orchestrator.usecases.steps import StepService
from mnemesh_orchestrator.usecases.windows import WindowService

PACKAGE = "mnemesh.agents.v1"
PURGE_SECONDS = 3600.0
UNFINISHED_SECONDS = 15.0
LATE_APPROVALS_SECONDS = 5.0
SHARED_RECOVERY_SECONDS = 1.0
"""How long a run of another process, whose lease has lapsed, waits at most to be found."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the servicers stand on."""

    agents: AgentService
    birth: AgentLifecycle
    prompts: Prompts
    windows: WindowService
    conversations: ConversationService
    previews: PreviewService
    compactions: CompactionService
    runner: ToolRunner
    runs: RunService
    steps: StepService
    identities: IdentityService
    approvals: ApprovalService
    models: ModelCatalog
    listed: ModelService
    providers: ProviderService
    conductor: RunWorker
    keeper: LeaseRenewer
    lookout: ReplicaWatcher
    gauge: TokenEstimator
    purge: Callable[[], Awaitable[object]]


async def assemble(config: Config, *, clock: Clock | None = None, ids: IdSource | None = None) -> Assembly:
    """The orchestrator over its migrated database, ready to start."""
    clock, ids = clock or SystemClock(), ids or RandomIds()
    owner = Instance(config.data_path / "orchestrator.owner", alone=config.database.startswith("sqlite"))
    database = Database.open(config.database, synchronous=config.sqlite_synchronous)
    await database.migrate("mnemesh_orchestrator")
    channels = Channels(errors=REMOTE, auth_key_file=config.auth_key_file)
    parts = _parts(config, database, _tiers(config, channels), owner.name, clock, ids)
    conductor = parts.conductor
    await parts.keeper.leave_lines()
    return Assembly(
        name="orchestrator",
        servicers=[
            (
                agents_service_pb2_grpc.add_AgentServiceServicer_to_server,
                AgentsServicer(
                    parts.agents,
                    parts.birth,
                    parts.windows,
                    parts.previews,
                    parts.runner,
                    parts.compactions,
                    parts.prompts,
                ),
            ),
            (
                runs_service_pb2_grpc.add_RunServiceServicer_to_server,
                RunsServicer(parts.runs, parts.approvals, parts.steps),
            ),
            (models_service_pb2_grpc.add_ModelServiceServicer_to_server, ModelsServicer(parts.listed, parts.providers)),
            (
                conversations_service_pb2_grpc.add_ConversationServiceServicer_to_server,
                ConversationsServicer(parts.conversations),
            ),
            (
                identities_service_pb2_grpc.add_IdentityServiceServicer_to_server,
                IdentitiesServicer(parts.identities),
            ),
            # In the contract, and answered UNIMPLEMENTED by the generated servicers until they are built.
            (
                groups_service_pb2_grpc.add_GroupServiceServicer_to_server,
                groups_service_pb2_grpc.GroupServiceServicer(),
            ),
        ],
        service_names=[
            f"{PACKAGE}.{name}Service" for name in ("Agent", "Run", "Model", "Conversation", "Group", "Identity")
        ],
        background=[
            *_shared(database, parts),
            parts.keeper.renew,
            parts.models.watch,
            periodic(UNFINISHED_SECONDS, parts.birth.finish_all),
            periodic(UNFINISHED_SECONDS, parts.conversations.finish_all),
            periodic(LATE_APPROVALS_SECONDS, parts.approvals.expire),
            periodic(PURGE_SECONDS, parts.purge),
        ],
        metrics=[
            Metric(
                "mnemesh_prompt_estimate_error",
                "Mean error of what requests to models were expected to take, as a share of what providers counted, "
                "over the last hundred answers.",
                lambda: parts.gauge.mean_error,
            )
        ],
        close=[owner.close, database.close, channels.close, parts.models.close, conductor.stop],
    )


def _shared(database: Database, parts: Parts) -> tuple[Callable[[], Awaitable[None]], ...]:
    """What keeps an eye on the database; SQLite serves one process, which knows by itself what happens there."""
    if database.dialect != "postgresql":
        return (parts.conductor.recover,)
    return (partial(parts.conductor.recover, SHARED_RECOVERY_SECONDS), parts.lookout.look)


def _tiers(config: Config, channels: Channels) -> Services:
    return Services(
        BlocksClient(channels.channel(config.blocks_target)),
        RecallClient(channels.channel(config.recall_target)),
        EpisodesClient(channels.channel(config.recall_target)),
        ArchivalClient(channels.channel(config.archival_target)),
        ToolsClient(channels.channel(config.tools_target)),
    )


def _parts(config: Config, database: Database, tiers: Services, owner: str, clock: Clock, ids: IdSource) -> Parts:
    times = LeaseTimes.of(database, clock)
    agent_store, run_store = SqlAgentStore(database, clock), SqlRunStore(database, clock, times)
    threads, leases = SqlConversationStore(database, clock, times), SqlLeaseStore(database, times)
    step_store, approval_store = SqlStepStore(database, clock), SqlApprovalStore(database, clock)
    alone = database.dialect == "sqlite"
    box = SecretBox(config.secrets_key_file, config.data_path / "secrets.key" if alone else None)
    safe, provider_store = CredentialSafe(box), SqlProviderStore(database, clock)
    models = ModelCatalog(Providers(config.language_models), provider_store, safe.settings, is_shared=not alone)
    prompts = Prompts(config.data_path / "system_prompts")
    patience = RetryPolicy(clock, config.tier_patience_seconds)
    builtin = BuiltinTools(tiers.core_memory, tiers.recall, tiers.episodes, tiers.archival, clock)
    context = ContextBuilder(tiers.recall, tiers.core_memory, tiers.archival, tiers.tools, clock)
    hub = EventBroker()
    delta_store = SqlDeltaStore(database, times)
    deltas = DeltaLog(delta_store)
    recorder = JournalWriter(run_store, deltas, hub, clock, keeps_traces=config.step_trace_days > 0)
    processors = Processors(
        load(INPUT_GROUP, config.input_processors, "MNEMESH_INPUT_PROCESSORS"),
        load(TOOL_RESULT_GROUP, config.tool_result_processors, "MNEMESH_TOOL_RESULT_PROCESSORS"),
        config.processor_seconds,
    )
    execution = ToolExecution(recorder, builtin, tiers.tools, tiers.core_memory, patience, clock, processors)
    gauge = TokenEstimator()
    compactor = model_compactor(models, tiers.episodes, tiers.recall, clock)
    swap = WindowReplacement(tiers.recall)
    fitting = ContextBudget(context, compactor, gauge, recorder, swap, patience, clock)
    engine = Engine(run_store, recorder, hub, tiers.recall, context, fitting, execution, patience, clock)
    turns = TurnBuilder(run_store, context, tiers.recall, models, builtin, patience)
    keeper = LeaseRenewer(leases, clock, owner)
    conductor = RunWorker(run_store, leases, keeper, hub, deltas, engine, turns, clock)
    slots = ConversationLock(leases, keeper, conductor.start_next, ids)
    agents = AgentService(agent_store, tiers.tools, builtin, context, models, clock, approval_store)
    windows = WindowService(agent_store, threads, slots, approval_store, tiers.recall, builtin, context, gauge, clock)
    conversations = ConversationService(
        threads, agent_store, tiers.recall, tiers.core_memory, windows, slots, context, models, clock, ids
    )
    previews = PreviewService(windows, turns, context, clock, ids)
    birth = AgentLifecycle(agent_store, tiers, models, prompts, context, conductor, clock, ids)
    follower = RunStreamer(run_store, delta_store, deltas, hub, clock)
    runs = RunService(run_store, leases, conductor, follower, models, clock, ids, processors)

    async def purge() -> None:
        now = clock.now()
        await run_store.purge_requests(now - RETENTION)
        await step_store.purge_traces(now - timedelta(days=config.step_trace_days))
        if config.run_days:
            await SqlRetention(database).purge_runs(now - timedelta(days=config.run_days))

    return Parts(
        agents,
        birth,
        prompts,
        windows,
        conversations,
        previews,
        CompactionService(agent_store, slots, swap, models, previews, context, fitting),
        ToolRunner(agent_store, builtin, tiers.tools, tiers.core_memory, context, ids),
        runs,
        StepService(step_store),
        IdentityService(SqlIdentityStore(database, clock), birth, tiers.core_memory, clock, ids),
        ApprovalService(approval_store, runs, conductor, clock, config.approval_timeout_seconds),
        models,
        ModelService(provider_store, models, config.default_embedder),
        ProviderService(provider_store, models, safe, clock, ids, config.provider_hosts),
        conductor,
        keeper,
        ReplicaWatcher(leases, keeper, conductor, hub),
        gauge,
        purge,
    )
