"""The parts of the orchestrator, and how they are connected. `wiring` chooses the stores and the clients."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cached_property, partial

from mnemesh_kit.ids import IdSource
from mnemesh_kit.secret_variables import SecretBox, SecretVariables
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.builtin.agent_messages import AgentMessages
from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.builtin.files import FileTools
from mnemesh_orchestrator.builtin.schedules import ScheduleTools
from mnemesh_orchestrator.clients.services import Services
from mnemesh_orchestrator.compaction.compactor import model_compactor
from mnemesh_orchestrator.compaction.episodic import FactExtractor, StoredMemory
from mnemesh_orchestrator.compaction.planner import TokenEstimator
from mnemesh_orchestrator.config import Config
from mnemesh_orchestrator.groups.executor import GroupExecutor
from mnemesh_orchestrator.llm.embedders import EmbedderDirectory
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.llm.settings import CredentialSealer
from mnemesh_orchestrator.loop.compaction import TurnCompaction, WindowCompactor, WindowReplacement
from mnemesh_orchestrator.loop.engine import Engine, StepAnswers
from mnemesh_orchestrator.loop.model_call import ModelCaller
from mnemesh_orchestrator.loop.request_assembly import ContextBudget, RequestAssembler, RequestImages
from mnemesh_orchestrator.loop.services import ContextReader, OptionalServices, RecallWrites, RetryPolicy, TurnMetrics
from mnemesh_orchestrator.loop.state import Journals
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
from mnemesh_orchestrator.usecases.agent_creation import AgentCreation, AgentLifecycle, PartnerService
from mnemesh_orchestrator.usecases.agent_parts import AgentChanges, AgentDeletion, AgentParts
from mnemesh_orchestrator.usecases.agents import AgentService, TextGenerationService, ToolRunner
from mnemesh_orchestrator.usecases.approvals import ApprovalService
from mnemesh_orchestrator.usecases.batches import BatchService, CallbackService
from mnemesh_orchestrator.usecases.budgets import BudgetService
from mnemesh_orchestrator.usecases.compactions import CompactionService
from mnemesh_orchestrator.usecases.context_windows import (
    ContextWindowRenderer,
    ContextWindowService,
    PreviewService,
    SystemPromptService,
)
from mnemesh_orchestrator.usecases.conversations import ConversationParts, ConversationService
from mnemesh_orchestrator.usecases.groups import GroupChanges, GroupService
from mnemesh_orchestrator.usecases.identities import IdentityService
from mnemesh_orchestrator.usecases.memory_extractions import MemoryExtractionService, MessageReader
from mnemesh_orchestrator.usecases.providers import ModelService, ProviderService
from mnemesh_orchestrator.usecases.runs import GroupPlanner, RunCancellations, RunService, StepService
from mnemesh_orchestrator.usecases.schedules import ScheduleService
from mnemesh_orchestrator.usecases.sleeptime import SleeptimeService
from mnemesh_orchestrator.usecases.webhooks import WebhookSecrets, WebhookService

SUMMARY_SECONDS = 60.0
"""The time limit of one call to a summary model."""


class Orchestrator:
    """The parts of a process: each is created when it is first used, from the parts that it needs.

    The process and the tests both use this class.

    Args:
        config: the settings.
        stores: the orchestrator's own stores.
        services: the other services.
        models: resolves the handles of models.
        credentials: seals and opens the credentials of providers.
        secrets: encrypts and decrypts the environment variables of agents.
        box: seals and opens the secrets of webhooks.
        processors: the processors of inputs and tool results.
        instance_id: identifies this process as a lease holder.
        clock: the clock of every part.
        ids: creates the ids of new resources.
        sleep: waits between two attempts to call a service.
        summary_seconds: the time limit of one call to a summary model.
    """

    def __init__(
        self,
        config: Config,
        stores: Stores,
        services: Services,
        *,
        models: ModelCatalog,
        credentials: CredentialSealer,
        secrets: SecretVariables,
        box: SecretBox,
        processors: Processors,
        instance_id: str,
        clock: Clock,
        ids: IdSource,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        summary_seconds: float = SUMMARY_SECONDS,
    ) -> None:
        self.config = config
        self.stores = stores
        self.services = services
        self.catalog = models
        self.credentials = credentials
        self.secrets = secrets
        self.box = box
        self.processors = processors
        self.instance_id = instance_id
        self.clock = clock
        self.ids = ids
        self.summary_seconds = summary_seconds
        self.retry = RetryPolicy(clock, config.service_retry_seconds, sleep)
        self.optional = OptionalServices(self.retry, config.degrade_seconds)
        self.prompt_texts = Prompts(config.data_path / "system_prompts")
        self.embedders = EmbedderDirectory(config.default_embedder)
        self.event_broker = EventBroker()
        self.schedule_changes = asyncio.Event()
        self.token_estimator = TokenEstimator()
        self.metrics = TurnMetrics()
        self.child_runs = ChildRuns(stores.runs, stores.run_relations, self.event_broker, processors, clock)
        # Runs start runs: the tools of a turn need what executes turns.
        self.child_runs.connect(RunStarter(self.worker, self.approvals.cancel, self.cancellations.cancel_unbegun))

    # The steps of a turn.

    @cached_property
    def builtin(self) -> BuiltinTools:
        stores, services = self.stores, self.services
        return BuiltinTools(
            blocks=services.core_memory,
            recall=services.recall,
            episodes=services.episodes,
            archival=services.archival,
            clock=self.clock,
            messages=AgentMessages(
                stores.agents, stores.groups, self.child_runs, self.clock, self.config.agent_reply_seconds
            ),
            web_port=services.web,
            files=FileTools(services.files, self.optional),
            tools=services.tools,
            optional=self.optional,
            schedules=ScheduleTools(stores.schedules, self.clock, self.schedule_changes),
        )

    @cached_property
    def context(self) -> ContextReader:
        return ContextReader(self.services, self.optional)

    @cached_property
    def requests(self) -> RequestAssembler:
        images = RequestImages(self.services.files, self.optional, self.clock)
        return RequestAssembler(self.context, images, self.clock)

    @cached_property
    def recall_writes(self) -> RecallWrites:
        return RecallWrites(self.stores.leases.overtake)

    @cached_property
    def window_replacement(self) -> WindowReplacement:
        return WindowReplacement(self.services.recall, self.recall_writes)

    @cached_property
    def window_compactor(self) -> WindowCompactor:
        services = self.services
        return WindowCompactor(
            context=self.context,
            requests=self.requests,
            compactor=model_compactor(
                self.catalog, services.episodes, services.recall, self.clock, call_seconds=self.summary_seconds
            ),
            estimator=self.token_estimator,
            replacement=self.window_replacement,
            retry=self.retry,
            clock=self.clock,
            metrics=self.metrics,
        )

    @cached_property
    def turn_compaction(self) -> TurnCompaction:
        return TurnCompaction(self.window_compactor, self.clock)

    @cached_property
    def engine(self) -> Engine:
        services, clock, metrics = self.services, self.clock, self.metrics
        budget = ContextBudget(self.token_estimator)
        return Engine(
            context=self.context,
            budget=budget,
            compaction=self.turn_compaction,
            answers=StepAnswers(self.requests, budget, self.turn_compaction, ModelCaller(clock, metrics), clock),
            tools=ToolExecution(
                builtin=self.builtin,
                tools=services.tools,
                secrets=self.secrets,
                core_memory=services.core_memory,
                retry=self.retry,
                clock=clock,
                processors=self.processors,
                metrics=metrics,
            ),
            committer=StepCommitter(services.recall, self.recall_writes, self.context, self.retry),
            retry=self.retry,
            clock=clock,
            budgets=self.stores.budgets,
        )

    # The execution of runs in this process.

    @cached_property
    def deltas(self) -> DeltaLog:
        return DeltaLog(self.stores.deltas)

    @cached_property
    def journals(self) -> Journals:
        return Journals(
            self.stores.runs,
            self.deltas,
            publish=self.event_broker.publish,
            publish_unstored=partial(self.event_broker.publish, is_stored=False),
            clock=self.clock,
            retry=self.retry,
            keeps_traces=self.config.step_trace_days > 0,
        )

    @cached_property
    def lease_renewer(self) -> LeaseRenewer:
        return LeaseRenewer(self.stores.leases, self.clock, self.instance_id)

    @cached_property
    def early_reads(self) -> EarlyReads:
        return EarlyReads(self.context, self.lease_renewer, self.retry)

    @cached_property
    def inputs(self) -> InputRecorder:
        return InputRecorder(self.stores.runs, self.services.recall)

    @cached_property
    def turns(self) -> TurnBuilder:
        return TurnBuilder(
            store=self.stores.runs,
            journals=self.journals,
            context=self.context,
            early=self.early_reads,
            recall=self.services.recall,
            writes=self.recall_writes,
            models=self.catalog,
            builtin=self.builtin,
            inputs=self.inputs,
            retry=self.retry,
            clock=self.clock,
        )

    @cached_property
    def transcripts(self) -> TranscriptInputs:
        return TranscriptInputs(
            self.stores.agents, self.services.recall, self.turns, self.requests, self.token_estimator, self.retry
        )

    @cached_property
    def streamer(self) -> RunStreamer:
        return RunStreamer(self.stores.runs, self.stores.deltas, self.deltas, self.event_broker, self.clock)

    @cached_property
    def worker(self) -> RunWorker:
        stores = self.stores
        groups = GroupExecutor(stores.runs, stores.run_relations, self.child_runs, self.streamer, self.clock)
        works = Works(
            turns=self.turns,
            engine=self.engine,
            compaction=self.turn_compaction,
            inputs=self.inputs,
            transcripts=self.transcripts,
            open_group=groups.open,
        )
        execution = RunExecution(
            journals=self.journals,
            works=works,
            leases=stores.leases,
            broker=self.event_broker,
            children=self.child_runs,
            clock=self.clock,
            metrics=self.metrics,
            max_stalled_claims=self.config.takeovers_without_progress,
        )
        return RunWorker(
            stores.runs,
            stores.leases,
            self.lease_renewer,
            self.event_broker,
            self.deltas,
            execution,
            self.metrics,
            self.early_reads,
        )

    @cached_property
    def replica_watcher(self) -> ReplicaWatcher:
        return ReplicaWatcher(self.stores.leases, self.lease_renewer, self.worker, self.event_broker)

    @cached_property
    def conversation_lock(self) -> ConversationLock:
        return ConversationLock(self.stores.leases, self.lease_renewer, self.worker.start_next, self.ids)

    # The use cases of runs.

    @cached_property
    def cancellations(self) -> RunCancellations:
        stores = self.stores
        return RunCancellations(stores.runs, stores.leases, self.worker, self.streamer, self.inputs, self.clock)

    @cached_property
    def runs(self) -> RunService:
        return RunService(
            store=self.stores.runs,
            worker=self.worker,
            streamer=self.streamer,
            early=self.early_reads,
            models=self.catalog,
            clock=self.clock,
            ids=self.ids,
            processors=self.processors,
            cancellations=self.cancellations,
            planner=GroupPlanner(self.stores.groups, self.stores.agents),
        )

    @cached_property
    def approvals(self) -> ApprovalService:
        seconds = self.config.approval_timeout_seconds
        return ApprovalService(self.stores.approvals, self.runs, self.worker, self.clock, seconds)

    @cached_property
    def batches(self) -> BatchService:
        return BatchService(self.stores.batches, self.runs, self.worker, self.clock, self.ids)

    @cached_property
    def budgets(self) -> BudgetService:
        return BudgetService(self.stores.budgets, self.worker)

    @cached_property
    def callbacks(self) -> CallbackService:
        stores = self.stores
        return CallbackService(stores.callbacks, stores.runs, stores.batches, self.webhook_secrets, self.clock)

    @cached_property
    def webhook_secrets(self) -> WebhookSecrets:
        return WebhookSecrets(self.box, self.clock)

    @cached_property
    def webhooks(self) -> WebhookService:
        hosts = frozenset(host.lower() for host in self.config.callback_hosts)
        public_only = self.config.auth_key_file is not None and not hosts
        store, secrets = self.stores.webhooks, self.webhook_secrets
        return WebhookService(store, secrets, self.clock, self.ids, hosts, public_only)

    @cached_property
    def schedules(self) -> ScheduleService:
        parts = (self.stores.schedules, self.runs, self.clock, self.ids, self.schedule_changes)
        return ScheduleService(*parts, started_at=self.clock.now())

    @cached_property
    def steps(self) -> StepService:
        return StepService(self.stores.steps)

    @cached_property
    def sleeptime(self) -> SleeptimeService:
        stores = self.stores
        return SleeptimeService(
            store=stores.sleeptime,
            groups=stores.groups,
            agents=stores.agents,
            recall=self.services.recall,
            transcripts=self.transcripts,
            previews=self.previews,
            worker=self.worker,
        )

    @cached_property
    def extractions(self) -> MemoryExtractionService:
        episodes = self.services.episodes
        return MemoryExtractionService(
            store=self.stores.extractions,
            agents=self.stores.agents,
            reader=MessageReader(self.services.recall),
            episodes=episodes,
            extractor=FactExtractor(self.catalog, StoredMemory(episodes), call_seconds=self.summary_seconds),
            clock=self.clock,
            metrics=self.metrics,
            instance_id=self.instance_id,
            tokens_per_day=self.config.extraction_tokens_per_day,
            budgets=self.stores.budgets,
        )

    # The use cases of agents, their conversations and their groups.

    @cached_property
    def agents(self) -> AgentService:
        stores, services = self.stores, self.services
        return AgentService(
            store=stores.agents,
            tools=services.tools,
            builtin=self.builtin,
            context=self.context,
            models=self.catalog,
            approvals=stores.approvals,
            groups=stores.groups,
            changes=self.agent_changes,
            partners=self.partners,
            secrets=self.secrets,
            renderer=self.renderer,
        )

    @cached_property
    def agent_parts(self) -> AgentParts:
        return AgentParts(self.services, self.catalog, self.context, self.requests, self.renderer)

    @cached_property
    def agent_changes(self) -> AgentChanges:
        return AgentChanges(self.catalog, self.embedders, self.prompt_texts, self.secrets, self.clock)

    @cached_property
    def agent_deletion(self) -> AgentDeletion:
        return AgentDeletion(self.stores.agents, self.agent_parts, self.group_changes, self.worker)

    @cached_property
    def partners(self) -> PartnerService:
        return PartnerService(
            store=self.stores.partners,
            agents=self.stores.agents,
            changes=self.agent_changes,
            parts=self.agent_parts,
            deletion=self.agent_deletion,
            groups=self.groups,
            prompts=self.prompt_texts,
            clock=self.clock,
            ids=self.ids,
        )

    @cached_property
    def lifecycle(self) -> AgentLifecycle:
        creation = AgentCreation(
            store=self.stores.agents,
            parts=self.agent_parts,
            partners=self.partners,
            deletion=self.agent_deletion,
            models=self.catalog,
            embedders=self.embedders,
            prompts=self.prompt_texts,
            secrets=self.secrets,
            clock=self.clock,
            ids=self.ids,
        )
        return AgentLifecycle(self.stores.agents, creation, self.partners, self.agent_deletion, self.clock)

    @cached_property
    def renderer(self) -> ContextWindowRenderer:
        return ContextWindowRenderer(self.builtin, self.context, self.requests, self.token_estimator, self.catalog)

    @cached_property
    def windows(self) -> ContextWindowService:
        stores = self.stores
        return ContextWindowService(
            agents=stores.agents,
            conversations=stores.conversations,
            lock=self.conversation_lock,
            approvals=stores.approvals,
            recall=self.services.recall,
            writes=self.recall_writes,
            context=self.context,
            renderer=self.renderer,
            clock=self.clock,
        )

    @cached_property
    def conversations(self) -> ConversationService:
        services = self.services
        return ConversationService(
            store=self.stores.conversations,
            agents=self.stores.agents,
            parts=ConversationParts(
                services.recall, services.core_memory, self.windows, self.conversation_lock, self.context
            ),
            context=self.context,
            models=self.catalog,
            clock=self.clock,
            ids=self.ids,
        )

    @cached_property
    def compactions(self) -> CompactionService:
        return CompactionService(
            agents=self.stores.agents,
            lock=self.conversation_lock,
            replacement=self.window_replacement,
            models=self.catalog,
            previews=self.previews,
            context=self.context,
            compactor=self.window_compactor,
            budgets=self.stores.budgets,
        )

    @cached_property
    def previews(self) -> PreviewService:
        return PreviewService(self.windows, self.turns, self.requests, self.stores.groups, self.clock, self.ids)

    @cached_property
    def prompts(self) -> SystemPromptService:
        return SystemPromptService(self.prompt_texts)

    @cached_property
    def tool_runner(self) -> ToolRunner:
        services = self.services
        return ToolRunner(
            agents=self.stores.agents,
            builtin=self.builtin,
            tools=services.tools,
            secrets=self.secrets,
            core_memory=services.core_memory,
            context=self.context,
            ids=self.ids,
        )

    @cached_property
    def generation(self) -> TextGenerationService:
        return TextGenerationService(self.stores.agents, self.catalog, self.stores.budgets, self.clock, self.ids)

    @cached_property
    def group_changes(self) -> GroupChanges:
        stores, services = self.stores, self.services
        return GroupChanges(
            stores.groups, stores.agents, services.core_memory, services.recall, self.cancellations, self.clock
        )

    @cached_property
    def groups(self) -> GroupService:
        return GroupService(
            store=self.stores.groups,
            agents=self.stores.agents,
            changes=self.group_changes,
            recall=self.services.recall,
            windows=self.windows,
            lock=self.conversation_lock,
            clock=self.clock,
            ids=self.ids,
        )

    @cached_property
    def identities(self) -> IdentityService:
        return IdentityService(
            store=self.stores.identities,
            runs=self.stores.runs,
            retention=self.stores.retention,
            schedules=self.stores.schedules,
            lifecycle=self.lifecycle,
            approvals=self.approvals,
            blocks=self.services.core_memory,
            recall=self.services.recall,
            clock=self.clock,
            ids=self.ids,
        )

    # The use cases of models.

    @cached_property
    def models(self) -> ModelService:
        return ModelService(self.stores.providers, self.catalog, self.embedders)

    @cached_property
    def providers(self) -> ProviderService:
        hosts = self.config.provider_hosts
        return ProviderService(self.stores.providers, self.catalog, self.credentials, self.clock, self.ids, hosts)
