"""The parts of the orchestrator, and how they are connected. `wiring` chooses the stores and the clients."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

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
    """The parts of a process, in the order in which they are created from one another.

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
        self._connect_steps()
        self._connect_engine()
        self._connect_turns()
        self._connect_worker()
        self._connect_runs()
        self._connect_windows()
        self._connect_background()
        self._connect_agents()
        self._connect_lifecycle()
        self._connect_tools()
        # Runs start runs: the tools of a turn need what executes turns.
        self.child_runs.connect(RunStarter(self.worker, self.approvals.cancel, self.cancellations.cancel_unbegun))

    def _connect_steps(self) -> None:
        """The parts of the steps of a turn."""
        stores, services, clock, metrics = self.stores, self.services, self.clock, self.metrics
        self.context = ContextReader(services, self.optional)
        images = RequestImages(services.files, self.optional, clock)
        self.requests = RequestAssembler(self.context, images, clock)
        self.recall_writes = RecallWrites(stores.leases.overtake)
        self.window_replacement = WindowReplacement(services.recall, self.recall_writes)
        self.window_compactor = WindowCompactor(
            context=self.context,
            requests=self.requests,
            compactor=model_compactor(
                self.catalog, services.episodes, services.recall, clock, call_seconds=self.summary_seconds
            ),
            estimator=self.token_estimator,
            replacement=self.window_replacement,
            retry=self.retry,
            clock=clock,
            metrics=metrics,
        )
        self.turn_compaction = TurnCompaction(self.window_compactor, clock)

    def _connect_engine(self) -> None:
        """The step loop and its tools."""
        stores, services, clock, metrics = self.stores, self.services, self.clock, self.metrics
        self.builtin = BuiltinTools(
            blocks=services.core_memory,
            recall=services.recall,
            episodes=services.episodes,
            archival=services.archival,
            clock=clock,
            messages=AgentMessages(
                stores.agents, stores.groups, self.child_runs, clock, self.config.agent_reply_seconds
            ),
            web_port=services.web,
            files=FileTools(services.files, self.optional),
            tools=services.tools,
            optional=self.optional,
            schedules=ScheduleTools(stores.schedules, clock, self.schedule_changes),
        )
        budget = ContextBudget(self.token_estimator)
        self.engine = Engine(
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
            budgets=stores.budgets,
        )

    def _connect_turns(self) -> None:
        """The journals, the inputs and the streams of runs."""
        stores, services, clock = self.stores, self.services, self.clock
        self.deltas = DeltaLog(stores.deltas)
        self.journals = Journals(
            stores.runs,
            self.deltas,
            publish=self.event_broker.publish,
            publish_unstored=partial(self.event_broker.publish, is_stored=False),
            clock=clock,
            retry=self.retry,
            keeps_traces=self.config.step_trace_days > 0,
        )
        self.lease_renewer = LeaseRenewer(stores.leases, clock, self.instance_id)
        self.early_reads = EarlyReads(self.context, self.lease_renewer, self.retry)
        self.inputs = InputRecorder(stores.runs, services.recall)
        self.turns = TurnBuilder(
            store=stores.runs,
            journals=self.journals,
            context=self.context,
            early=self.early_reads,
            recall=services.recall,
            writes=self.recall_writes,
            models=self.catalog,
            builtin=self.builtin,
            inputs=self.inputs,
            retry=self.retry,
            clock=clock,
        )
        self.transcripts = TranscriptInputs(
            stores.agents, services.recall, self.turns, self.requests, self.token_estimator, self.retry
        )
        self.streamer = RunStreamer(stores.runs, stores.deltas, self.deltas, self.event_broker, clock)

    def _connect_worker(self) -> None:
        """The execution of runs in this process."""
        stores, clock, metrics = self.stores, self.clock, self.metrics
        groups = GroupExecutor(stores.runs, stores.run_relations, self.child_runs, self.streamer, clock)
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
            clock=clock,
            metrics=metrics,
            max_stalled_claims=self.config.takeovers_without_progress,
        )
        self.worker = RunWorker(
            stores.runs,
            stores.leases,
            self.lease_renewer,
            self.event_broker,
            self.deltas,
            execution,
            metrics,
            self.early_reads,
        )
        self.replica_watcher = ReplicaWatcher(stores.leases, self.lease_renewer, self.worker, self.event_broker)
        self.conversation_lock = ConversationLock(stores.leases, self.lease_renewer, self.worker.start_next, self.ids)

    def _connect_runs(self) -> None:
        """The use cases of runs."""
        stores, clock = self.stores, self.clock
        self.cancellations = RunCancellations(
            stores.runs, stores.leases, self.worker, self.streamer, self.inputs, clock
        )
        self.runs = RunService(
            store=stores.runs,
            worker=self.worker,
            streamer=self.streamer,
            early=self.early_reads,
            models=self.catalog,
            clock=clock,
            ids=self.ids,
            processors=self.processors,
            cancellations=self.cancellations,
            planner=GroupPlanner(stores.groups, stores.agents),
        )
        seconds = self.config.approval_timeout_seconds
        self.approvals = ApprovalService(stores.approvals, self.runs, self.worker, clock, seconds)
        self.batches = BatchService(stores.batches, self.runs, self.worker, clock, self.ids)
        self.budgets = BudgetService(stores.budgets, self.worker)
        self.webhook_secrets = WebhookSecrets(self.box, clock)
        self.callbacks = CallbackService(stores.callbacks, stores.runs, stores.batches, self.webhook_secrets, clock)
        hosts = frozenset(host.lower() for host in self.config.callback_hosts)
        public_only = self.config.auth_key_file is not None and not hosts
        store, secrets = stores.webhooks, self.webhook_secrets
        self.webhooks = WebhookService(store, secrets, clock, self.ids, hosts, public_only)
        parts = (stores.schedules, self.runs, clock, self.ids, self.schedule_changes)
        self.schedules = ScheduleService(*parts, started_at=clock.now())
        self.steps = StepService(stores.steps)

    def _connect_windows(self) -> None:
        """The use cases of conversations and their windows."""
        stores, services, clock = self.stores, self.services, self.clock
        self.renderer = ContextWindowRenderer(
            self.builtin, self.context, self.requests, self.token_estimator, self.catalog
        )
        self.windows = ContextWindowService(
            agents=stores.agents,
            conversations=stores.conversations,
            lock=self.conversation_lock,
            approvals=stores.approvals,
            recall=services.recall,
            writes=self.recall_writes,
            context=self.context,
            renderer=self.renderer,
            clock=clock,
        )
        self.previews = PreviewService(self.windows, self.turns, self.requests, stores.groups, clock, self.ids)
        self.conversations = ConversationService(
            store=stores.conversations,
            agents=stores.agents,
            parts=ConversationParts(
                services.recall, services.core_memory, self.windows, self.conversation_lock, self.context
            ),
            context=self.context,
            models=self.catalog,
            clock=clock,
            ids=self.ids,
        )
        self.compactions = CompactionService(
            agents=stores.agents,
            lock=self.conversation_lock,
            replacement=self.window_replacement,
            models=self.catalog,
            previews=self.previews,
            context=self.context,
            compactor=self.window_compactor,
            budgets=stores.budgets,
        )

    def _connect_background(self) -> None:
        """The work that no client asks for."""
        stores, services, clock, metrics = self.stores, self.services, self.clock, self.metrics
        self.sleeptime = SleeptimeService(
            store=stores.sleeptime,
            groups=stores.groups,
            agents=stores.agents,
            recall=services.recall,
            transcripts=self.transcripts,
            previews=self.previews,
            worker=self.worker,
        )
        episodes = services.episodes
        self.extractions = MemoryExtractionService(
            store=stores.extractions,
            agents=stores.agents,
            reader=MessageReader(services.recall),
            episodes=episodes,
            extractor=FactExtractor(self.catalog, StoredMemory(episodes), call_seconds=self.summary_seconds),
            clock=clock,
            metrics=metrics,
            instance_id=self.instance_id,
            tokens_per_day=self.config.extraction_tokens_per_day,
            budgets=stores.budgets,
        )

    def _connect_agents(self) -> None:
        """The use cases of agents and groups."""
        stores, services, clock = self.stores, self.services, self.clock
        self.agent_changes = AgentChanges(self.catalog, self.embedders, self.prompt_texts, self.secrets, clock)
        self.agent_parts = AgentParts(services, self.catalog, self.context, self.requests, self.renderer)
        self.group_changes = GroupChanges(
            stores.groups, stores.agents, services.core_memory, services.recall, self.cancellations, clock
        )
        self.agent_deletion = AgentDeletion(stores.agents, self.agent_parts, self.group_changes, self.worker)
        self.groups = GroupService(
            store=stores.groups,
            agents=stores.agents,
            changes=self.group_changes,
            recall=services.recall,
            windows=self.windows,
            lock=self.conversation_lock,
            clock=clock,
            ids=self.ids,
        )
        self.partners = PartnerService(
            store=stores.partners,
            agents=stores.agents,
            changes=self.agent_changes,
            parts=self.agent_parts,
            deletion=self.agent_deletion,
            groups=self.groups,
            prompts=self.prompt_texts,
            clock=clock,
            ids=self.ids,
        )

    def _connect_lifecycle(self) -> None:
        """Creation and deletion, and what needs them."""
        stores, services, clock = self.stores, self.services, self.clock
        creation = AgentCreation(
            store=stores.agents,
            parts=self.agent_parts,
            partners=self.partners,
            deletion=self.agent_deletion,
            models=self.catalog,
            embedders=self.embedders,
            prompts=self.prompt_texts,
            secrets=self.secrets,
            clock=clock,
            ids=self.ids,
        )
        self.lifecycle = AgentLifecycle(stores.agents, creation, self.partners, self.agent_deletion, clock)
        self.identities = IdentityService(
            store=stores.identities,
            runs=stores.runs,
            retention=stores.retention,
            schedules=stores.schedules,
            lifecycle=self.lifecycle,
            approvals=self.approvals,
            blocks=services.core_memory,
            recall=services.recall,
            clock=clock,
            ids=self.ids,
        )
        self.agents = AgentService(
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

    def _connect_tools(self) -> None:
        """Tools, texts and models on request."""
        stores, services, clock = self.stores, self.services, self.clock
        self.prompts = SystemPromptService(self.prompt_texts)
        self.tool_runner = ToolRunner(
            agents=stores.agents,
            builtin=self.builtin,
            tools=services.tools,
            secrets=self.secrets,
            core_memory=services.core_memory,
            context=self.context,
            ids=self.ids,
        )
        self.generation = TextGenerationService(stores.agents, self.catalog, stores.budgets, clock, self.ids)
        self.models = ModelService(stores.providers, self.catalog, self.embedders)
        hosts = self.config.provider_hosts
        self.providers = ProviderService(stores.providers, self.catalog, self.credentials, clock, self.ids, hosts)
