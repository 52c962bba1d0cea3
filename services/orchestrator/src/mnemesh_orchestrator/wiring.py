"""Builds the service from its parts. Only this module chooses implementations."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

from mnemesh.agents.v1 import (
    agents_service_pb2_grpc,
    budgets_service_pb2_grpc,
    conversations_service_pb2_grpc,
    groups_service_pb2_grpc,
    identities_service_pb2_grpc,
    models_service_pb2_grpc,
    runs_service_pb2_grpc,
    schedules_service_pb2_grpc,
    webhooks_service_pb2_grpc,
)
from mnemesh_kit.audit import AuditLog
from mnemesh_kit.call_context import Role
from mnemesh_kit.channels import Channels
from mnemesh_kit.config import TlsSettings
from mnemesh_kit.forwarding import forwarded_services
from mnemesh_kit.idempotency import RETENTION
from mnemesh_kit.ids import IdSource, RandomIds
from mnemesh_kit.local_calls import LocalServers
from mnemesh_kit.metrics import Gauge
from mnemesh_kit.secret_variables import SecretBox, SecretVariables
from mnemesh_kit.server import Assembly, periodic
from mnemesh_kit.services import service
from mnemesh_kit.sql import open_database
from mnemesh_kit.time import Clock, SystemClock

from mnemesh_orchestrator.clients.archival import ArchivalClient, ArchivalRecords
from mnemesh_orchestrator.clients.blocks import BlockRecords, BlocksClient
from mnemesh_orchestrator.clients.files import FileRecords, FilesClient
from mnemesh_orchestrator.clients.recall import EpisodesClient, RecallClient
from mnemesh_orchestrator.clients.recall_records import MessageRecords, TraceRecords, WindowRecords
from mnemesh_orchestrator.clients.records import RecordPart, RecordParts
from mnemesh_orchestrator.clients.services import Services
from mnemesh_orchestrator.clients.tools import ToolRecords, ToolsClient, WebClient
from mnemesh_orchestrator.config import Config
from mnemesh_orchestrator.errors import REMOTE
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog, Providers
from mnemesh_orchestrator.llm.settings import CredentialSealer
from mnemesh_orchestrator.model.runs import PoolLimits, RunPool
from mnemesh_orchestrator.orchestrator import Orchestrator
from mnemesh_orchestrator.processors import INPUT_GROUP, TOOL_RESULT_GROUP, Processors, load
from mnemesh_orchestrator.rpc.agents import AgentsServicer
from mnemesh_orchestrator.rpc.budgets import BudgetsServicer
from mnemesh_orchestrator.rpc.conversations import ConversationsServicer
from mnemesh_orchestrator.rpc.groups import GroupsServicer
from mnemesh_orchestrator.rpc.identities import IdentitiesServicer
from mnemesh_orchestrator.rpc.models import ModelsServicer
from mnemesh_orchestrator.rpc.runs import RunsServicer
from mnemesh_orchestrator.rpc.schedules import SchedulesServicer
from mnemesh_orchestrator.rpc.webhooks import WebhooksServicer
from mnemesh_orchestrator.runs.worker import Instance
from mnemesh_orchestrator.store.budgets import Budgets
from mnemesh_orchestrator.store.run_pools import QueueCounts
from mnemesh_orchestrator.store.stores import Stores, sql_stores
from mnemesh_orchestrator.store.tables import owners
from mnemesh_orchestrator.usecases.agent_transfers import AgentExportService, AgentImportService, ImportEnds
from mnemesh_orchestrator.usecases.import_batches import ImportWriter

FORWARDED = ("blocks", "recall", "archival", "tools", "files")
"""The services whose calls by clients the orchestrator forwards, so that a client needs one address."""
PURGE_SECONDS = 3600.0
DELIVERY_DAYS = 7
COUNT_SECONDS = 15.0
UNFINISHED_SECONDS = 15.0
LATE_APPROVALS_SECONDS = 5.0
DUE_SLEEPTIME_SECONDS = 5.0
DUE_EXTRACTIONS_SECONDS = 2.0
SHARED_RECOVERY_SECONDS = 1.0
"""How often a replica looks for runs of other replicas whose lease has expired."""


async def assemble(
    config: Config,
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    local: LocalServers | None = None,
) -> Assembly:
    """Returns the orchestrator over its migrated database, ready to start."""
    clock, ids = clock or SystemClock(), ids or RandomIds()
    is_sqlite = config.database.startswith("sqlite")
    instance = Instance(config.data_path / "orchestrator.owner", alone=is_sqlite)
    database = await open_database(config, "mnemesh_orchestrator")
    tls = TlsSettings.of(config)
    channels = Channels(local=local, errors=REMOTE, auth_key_file=config.auth_key_file, role=Role.SERVICE, tls=tls)
    stores = sql_stores(
        database,
        clock,
        PoolLimits(config.sleeptime_runs, config.batch_runs, config.organization_runs or None),
        Budgets(config.organization_tokens_per_day),
    )
    box = SecretBox.of_service(config.secrets_key_file, config.database, config.data_path)
    credentials = CredentialSealer(box)
    models = ModelCatalog(
        Providers(config.language_models), stores.providers, credentials.open_settings, is_shared=not is_sqlite
    )
    services, secrets = _services(config, channels), SecretVariables(box, clock)
    orchestrator = Orchestrator(
        config,
        stores,
        services,
        models=models,
        credentials=credentials,
        secrets=secrets,
        box=box,
        processors=Processors(
            load(INPUT_GROUP, config.input_processors, "MNEMESH_INPUT_PROCESSORS"),
            load(TOOL_RESULT_GROUP, config.tool_result_processors, "MNEMESH_TOOL_RESULT_PROCESSORS"),
        ),
        instance_id=instance.id,
        clock=clock,
        ids=ids,
    )
    exports, imports = _transfers(
        orchestrator, _record_parts(config, channels), WindowRecords(channels.channel(config.recall_target))
    )
    await orchestrator.lease_renewer.leave_queues()
    counts = QueueCounts(database)
    return Assembly(
        name="orchestrator",
        servicers=_servicers(orchestrator, exports, imports),
        service_names=service("orchestrator").proto_services,
        audit_log=AuditLog(database, clock, config.audit_retention_days),
        find_owners=owners(database).find,
        forwarded=forwarded_services({name: getattr(config, f"{name}_target") for name in FORWARDED}),
        background=[
            *_recovery(orchestrator, is_shared=not is_sqlite),
            orchestrator.lease_renewer.renew,
            models.watch,
            orchestrator.schedules.watch,
            periodic(UNFINISHED_SECONDS, orchestrator.lifecycle.finish_all),
            periodic(PURGE_SECONDS, imports.abandon_late),
            periodic(UNFINISHED_SECONDS, orchestrator.conversations.finish_all),
            periodic(UNFINISHED_SECONDS, orchestrator.group_changes.finish_all),
            periodic(UNFINISHED_SECONDS, orchestrator.inputs.record_missing),
            periodic(LATE_APPROVALS_SECONDS, orchestrator.approvals.expire),
            periodic(DUE_SLEEPTIME_SECONDS, orchestrator.sleeptime.start_due),
            periodic(DUE_EXTRACTIONS_SECONDS, orchestrator.extractions.run_due),
            periodic(PURGE_SECONDS, _purge(config, stores, clock)),
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
            "mnemesh_sleeptime_runs_waiting",
            "Sleeptime runs that wait for a place or for their conversation, of all replicas; read every 15 seconds.",
            lambda: counts.waiting_of(RunPool.SLEEPTIME),
        ),
        Gauge(
            "mnemesh_sleeptime_runs_active",
            "Sleeptime runs that execute, of all replicas; read every 15 seconds.",
            lambda: counts.active_of(RunPool.SLEEPTIME),
        ),
        Gauge(
            "mnemesh_batch_runs_waiting",
            "Runs of batches that wait for a place or for their conversation, of all replicas; read every 15 seconds.",
            lambda: counts.waiting_of(RunPool.BATCH),
        ),
        Gauge(
            "mnemesh_batch_runs_active",
            "Runs of batches that execute, of all replicas; read every 15 seconds.",
            lambda: counts.active_of(RunPool.BATCH),
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


def _transfers(
    orchestrator: Orchestrator, parts: RecordParts, windows: WindowRecords
) -> tuple[AgentExportService, AgentImportService]:
    """Connects the export and the import of agents to the records in the other services, by their types."""
    stores, services = orchestrator.stores, orchestrator.services
    writer = ImportWriter(stores.agent_imports, stores.identities, parts, windows, orchestrator.agent_parts)
    ends = ImportEnds(
        stores.agent_imports,
        stores.agents,
        writer,
        services.tools,
        orchestrator.agents,
        orchestrator.groups,
        stores.schedules,
        orchestrator.secrets,
    )
    imports = AgentImportService(
        stores.agent_imports,
        writer,
        ends,
        windows,
        orchestrator.catalog,
        orchestrator.embedders,
        orchestrator.clock,
    )
    return AgentExportService(stores, parts, services.recall, orchestrator.clock), imports


def _servicers(
    orchestrator: Orchestrator, exports: AgentExportService, imports: AgentImportService
) -> list[tuple[Callable[[Any, Any], None], Any]]:
    return [
        (
            agents_service_pb2_grpc.add_AgentServiceServicer_to_server,
            AgentsServicer(
                orchestrator.agents,
                orchestrator.lifecycle,
                orchestrator.windows,
                orchestrator.previews,
                orchestrator.tool_runner,
                orchestrator.generation,
                orchestrator.compactions,
                orchestrator.prompts,
                orchestrator.extractions,
                exports,
                imports,
            ),
        ),
        (
            runs_service_pb2_grpc.add_RunServiceServicer_to_server,
            RunsServicer(
                orchestrator.runs,
                orchestrator.approvals,
                orchestrator.steps,
                orchestrator.batches,
                orchestrator.callbacks,
            ),
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
        (
            groups_service_pb2_grpc.add_GroupServiceServicer_to_server,
            GroupsServicer(orchestrator.groups, orchestrator.sleeptime),
        ),
        (
            budgets_service_pb2_grpc.add_BudgetServiceServicer_to_server,
            BudgetsServicer(orchestrator.budgets),
        ),
        (
            schedules_service_pb2_grpc.add_ScheduleServiceServicer_to_server,
            SchedulesServicer(orchestrator.schedules),
        ),
        (
            webhooks_service_pb2_grpc.add_WebhookServiceServicer_to_server,
            WebhooksServicer(orchestrator.webhooks),
        ),
    ]


def _services(config: Config, channels: Channels) -> Services:
    return Services(
        BlocksClient(channels.channel(config.blocks_target)),
        RecallClient(channels.channel(config.recall_target)),
        EpisodesClient(channels.channel(config.recall_target)),
        ArchivalClient(channels.channel(config.archival_target)),
        ToolsClient(channels.channel(config.tools_target)),
        WebClient(channels.channel(config.tools_target)),
        FilesClient(channels.channel(config.files_target)),
    )


def _record_parts(config: Config, channels: Channels) -> RecordParts:
    recall = channels.channel(config.recall_target)
    parts: list[RecordPart] = [
        BlockRecords(channels.channel(config.blocks_target)),
        MessageRecords(recall),
        TraceRecords(recall),
        ArchivalRecords(channels.channel(config.archival_target)),
        ToolRecords(channels.channel(config.tools_target)),
        FileRecords(channels.channel(config.files_target)),
    ]
    return {kind: part for part in parts for kind in part.types}


def _recovery(orchestrator: Orchestrator, *, is_shared: bool) -> tuple[Callable[[], Awaitable[None]], ...]:
    """The tasks that find work in the database. SQLite serves one process, which knows its own work."""
    if not is_shared:
        return (orchestrator.worker.recover,)
    return (partial(orchestrator.worker.recover, SHARED_RECOVERY_SECONDS), orchestrator.replica_watcher.look)


def _purge(config: Config, stores: Stores, clock: Clock) -> Callable[[], Awaitable[None]]:
    async def purge() -> None:
        now = clock.now()
        await stores.runs.purge_requests(now - RETENTION)
        await stores.steps.purge_traces(now - timedelta(days=config.step_trace_days))
        await stores.extractions.purge_usage((now - timedelta(days=2)).date())
        await stores.callbacks.purge(now - timedelta(days=DELIVERY_DAYS))
        if config.run_days:
            await stores.retention.purge_runs(now - timedelta(days=config.run_days))
            await stores.schedules.purge(now - timedelta(days=config.run_days))

    return purge
