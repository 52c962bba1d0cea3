"""Orchestrator processes on the same database: the real wiring over the real services in this process."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from mnemesh_kit.call_context import DEFAULT_PRINCIPAL
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import RandomIds
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.secret_variables import SecretBox, SecretVariables
from mnemesh_kit.sql import Database, DatabaseUnavailable
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.clients.services import Services
from mnemesh_orchestrator.config import Config
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.llm.settings import CredentialSealer
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.conversations import ApprovalAnswer, ContextWindow
from mnemesh_orchestrator.model.creation import AgentDraft
from mnemesh_orchestrator.model.events import Delta, DurableBody, MessageEvent, RunEvent
from mnemesh_orchestrator.model.inputs import InputMessage, RunConfig
from mnemesh_orchestrator.model.runs import PoolLimits, Run, RunFilter, RunRequest
from mnemesh_orchestrator.orchestrator import Orchestrator
from mnemesh_orchestrator.processors import Processors
from mnemesh_orchestrator.runs.leases import ConversationLock, LeaseRenewer
from mnemesh_orchestrator.runs.run_stream import EventBroker
from mnemesh_orchestrator.runs.worker import ReplicaWatcher, RunWorker
from mnemesh_orchestrator.store.budgets import Budgets
from mnemesh_orchestrator.store.stores import Stores, sql_stores
from mnemesh_orchestrator.usecases.agent_creation import AgentLifecycle
from mnemesh_orchestrator.usecases.agents import AgentService, ToolRunner
from mnemesh_orchestrator.usecases.approvals import ApprovalService
from mnemesh_orchestrator.usecases.compactions import CompactionService
from mnemesh_orchestrator.usecases.context_windows import ContextWindowService, PreviewService
from mnemesh_orchestrator.usecases.conversations import ConversationService
from mnemesh_orchestrator.usecases.groups import GroupChanges, GroupService
from mnemesh_orchestrator.usecases.runs import RunService, StepService
from mnemesh_types.agents import ModelSettings
from mnemesh_types.blocks import Block
from mnemesh_types.messages import ApprovalDecision, Message, Role, TextPart

from .faults import Crash, Faults, watched
from .files import Files
from .model import OneProvider, ScriptedModel
from .services import RealServices, real_services
from .written_groups import WrittenGroups

WATCHED_STORES = (
    *("agents", "partners", "runs", "conversations", "leases", "approvals", "deltas", "groups", "sleeptime"),
    *("extractions", "batches", "budgets", "schedules"),
)
ME = DEFAULT_PRINCIPAL
SYSTEM = "You are a test.\n{CORE_MEMORY}"


async def each(stream: AsyncGenerator[Sequence[RunEvent], None]) -> AsyncGenerator[RunEvent, None]:
    """Yields the events of a stream one by one."""
    async with aclosing(stream):
        async for events in stream:
            for event in events:
                yield event


@dataclass
class Process:
    """One process of the orchestrator."""

    orchestrator: Orchestrator
    stores: Stores
    clock: FrozenClock
    faults: Faults

    @property
    def agents(self) -> AgentService:
        return self.orchestrator.agents

    @property
    def lifecycle(self) -> AgentLifecycle:
        return self.orchestrator.lifecycle

    @property
    def windows(self) -> ContextWindowService:
        return self.orchestrator.windows

    @property
    def conversations(self) -> ConversationService:
        return self.orchestrator.conversations

    @property
    def groups(self) -> GroupService:
        return self.orchestrator.groups

    @property
    def group_changes(self) -> GroupChanges:
        return self.orchestrator.group_changes

    @property
    def previews(self) -> PreviewService:
        return self.orchestrator.previews

    @property
    def compactions(self) -> CompactionService:
        return self.orchestrator.compactions

    @property
    def tool_runner(self) -> ToolRunner:
        return self.orchestrator.tool_runner

    @property
    def runs(self) -> RunService:
        return self.orchestrator.runs

    @property
    def steps(self) -> StepService:
        return self.orchestrator.steps

    @property
    def approvals(self) -> ApprovalService:
        return self.orchestrator.approvals

    @property
    def worker(self) -> RunWorker:
        return self.orchestrator.worker

    @property
    def lease_renewer(self) -> LeaseRenewer:
        return self.orchestrator.lease_renewer

    @property
    def conversation_lock(self) -> ConversationLock:
        return self.orchestrator.conversation_lock

    @property
    def replica_watcher(self) -> ReplicaWatcher:
        return self.orchestrator.replica_watcher

    @property
    def event_broker(self) -> EventBroker:
        return self.orchestrator.event_broker

    async def send(
        self,
        agent: Agent,
        text: str = "Hello",
        *,
        otid: str | None = None,
        to: str = "",
        **config: Any,
    ) -> list[RunEvent]:
        """Sends a message after a second, and returns all events of its run."""
        messages = [InputMessage((TextPart(text),), otid=otid)]
        return await self.send_all(agent, messages, to=to, **config)

    async def send_all(
        self,
        agent: Agent,
        messages: Sequence[InputMessage],
        *,
        to: str = "",
        **config: Any,
    ) -> list[RunEvent]:
        """Sends the input of one turn after a second, and returns all events of its run."""
        self.clock.advance(1)
        stream = self.runs.send(ME, None, RunRequest(agent.id, to, messages, RunConfig(**config)))
        events = [event async for event in each(stream)]
        await self._end_of_task(events[0].run_id)  # a compaction may follow the run
        return events

    async def _end_of_task(self, run_id: str) -> None:
        active = self.worker._active.get(run_id)
        if active is not None and active.task is not None:
            await asyncio.wait([active.task])
            if not active.task.cancelled():
                active.task.exception()  # retrieved, so that asyncio does not log a crash

    async def answer(
        self,
        agent: Agent,
        *decisions: ApprovalDecision,
        to: str = "",
        request: str | None = None,
        config: RunConfig | None = None,
        texts: Sequence[str] = (),
        key: RequestKey | None = None,
    ) -> list[RunEvent]:
        """Answers an approval after a second, and returns all events of the answering run."""
        self.clock.advance(1)
        given = ApprovalAnswer(decisions, request, config)
        messages = [InputMessage((TextPart(text),)) for text in texts]
        _, stream = await self.approvals.answer(ME, key, agent.id, to, given, messages)
        return [event async for event in each(stream)]

    async def start(self, agent: Agent, text: str = "Hello", *, to: str = "", **config: Any) -> Run:
        """Sends a message in the background after a second."""
        self.clock.advance(1)
        return await self.runs.start(
            ME, None, RunRequest(agent.id, to, [InputMessage((TextPart(text),))], RunConfig(**config))
        )

    async def follow(self, run: Run, after: int = 0, *, deltas: bool = False) -> list[RunEvent]:
        """Returns the events of a run until its end."""
        stream = self.runs.follow(ME, run.id, after, 30, deltas=deltas)
        return [event async for event in each(stream)]

    async def outcome(self, agent: Agent) -> Run:
        """Returns the agent's latest run."""
        where, newest = RunFilter(agent_ids=(agent.id,)), PageQuery(1, ascending=False)
        return (await self.runs.list(ME, where, newest)).items[0]

    async def recover(self) -> None:
        """Claims the runs that no process holds, once, and waits until they end."""
        for conversation_id in await self.stores.leases.claimable(self.lease_renewer.instance_id):
            await self.worker.claim_and_run(conversation_id)
        await self.idle()

    async def idle(self) -> None:
        """Waits until no run is active."""
        while tasks := set(self.worker._tasks):
            await asyncio.wait(tasks)


@dataclass
class World:
    """Everything that survives a process."""

    database: Database
    directory: Path
    services: RealServices
    clock: FrozenClock = field(default_factory=FrozenClock)
    faults: Faults = field(default_factory=Faults)
    settings: ModelSettings = field(default_factory=lambda: ModelSettings(context_window=32_000))
    provider: OneProvider | None = None
    """Replaces the scripted model."""
    approval_timeout: float = 0
    reply_seconds: float = 600
    waits: list[float] = field(default_factory=list)
    call_seconds: float = 60.0
    processors: Processors = field(default_factory=Processors)
    limits: PoolLimits = PoolLimits()  # noqa: RUF009 -- frozen
    budgets: Budgets = Budgets()  # noqa: RUF009 -- frozen
    on_wait: Callable[[], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        services = self.services
        self.blocks, self.recall, self.episodes = services.blocks, services.recall, services.episodes
        self.archival, self.tools, self.web = services.archival, services.tools, services.web
        self.files = Files()
        self.model = ScriptedModel(self.faults)

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.clock.advance(seconds)
        if self.on_wait is not None:
            await self.on_wait()

    def process(self, instance_id: str = "instance-1") -> Process:
        """Starts a process with the current faults."""
        clock, faults = self.clock, self.faults
        self.model._faults = faults
        stores = replace(
            sql_stores(self.database, clock, self.limits, self.budgets), groups=WrittenGroups(self.database, clock)
        )
        own = {name: watched(getattr(stores, name), name, faults, DatabaseUnavailable) for name in WATCHED_STORES}
        stores = replace(stores, **own)
        services = Services(
            watched(self.blocks, "blocks", faults),
            watched(self.recall, "recall", faults),
            watched(self.episodes, "episodes", faults),
            watched(self.archival, "archival", faults),
            watched(self.tools, "tools", faults),
            self.web,
            watched(self.files, "files", faults),
        )
        orchestrator = Orchestrator(
            Config(
                data_dir=str(self.directory),
                approval_timeout_seconds=self.approval_timeout,
                agent_reply_seconds=self.reply_seconds,
            ),
            stores,
            services,
            models=cast("ModelCatalog", self.provider or OneProvider(self.model, self.settings)),
            credentials=CredentialSealer(SecretBox(None, self.directory / "secrets.key")),
            secrets=SecretVariables(SecretBox(None, self.directory / "secrets.key"), clock),
            box=SecretBox(None, self.directory / "secrets.key"),
            processors=self.processors,
            instance_id=instance_id,
            clock=clock,
            ids=RandomIds(),
            sleep=self._sleep,
            summary_seconds=self.call_seconds,
        )
        return Process(orchestrator, stores, clock, faults)

    async def agent(self, process: Process, kind: AgentType = AgentType.LETTA_V1, **draft: Any) -> Agent:
        """Creates an agent with a block `human`, as a client would."""
        draft.setdefault("blocks", (Block(label="human", value="Nothing yet."),))
        draft.setdefault("system", SYSTEM)
        return await process.lifecycle.create(ME, None, AgentDraft(kind, **draft))

    def window(self, agent: Agent) -> ContextWindow:
        """Returns the default conversation's window from recall."""
        return self.recall.window(agent.default_conversation_id)

    def turn(self, agent: Agent, since: int = 1) -> tuple[Message, ...]:
        """Returns the messages of the window after its first ones."""
        return self.window(agent).messages[since:]


@asynccontextmanager
async def opened(directory: Path, url: str | None = None, **given: Any) -> AsyncIterator[World]:
    """Opens a world on empty databases, by default in memory."""
    database = Database.open(url or "sqlite:///:memory:")
    await database.migrate("mnemesh_orchestrator")
    clock = given.setdefault("clock", FrozenClock())
    try:
        async with real_services(directory, clock) as services:
            yield World(database, directory, services, **given)
    finally:
        await database.close()


def lines(messages: Sequence[Message]) -> list[str]:
    """Returns messages as a transcript: one line per part."""
    shown = []
    for message in messages:
        role = message.role.value
        for part in message.content:
            kind = "text" if isinstance(part, TextPart) else "thought"
            shown.append(f"{role} {kind}: {getattr(part, 'text', part)}")
        shown += [f"{role} calls {created.name}{created.arguments}" for created in message.tool_calls]
        shown += [f"{role} {item.status.value} of {item.name}: {item.text}" for item in message.tool_returns]
    return shown


def told(events: Sequence[RunEvent]) -> list[DurableBody]:
    """Returns the durable events of a stream without the run's input, and checks that all numbers are contiguous."""
    durable = [event for event in events if event.sequence is not None]
    assert [event.sequence for event in durable] == list(range(1, len(durable) + 1))
    bodies = [cast("DurableBody", event.body) for event in durable]
    return [body for body in bodies if not (isinstance(body, MessageEvent) and body.kind in ("user", "system"))]


def kinds(events: Sequence[RunEvent]) -> list[str]:
    """Returns the kinds of the durable events."""
    return [body.kind if isinstance(body, MessageEvent) else type(body).__name__ for body in told(events)]


def deltas(events: Sequence[RunEvent]) -> list[Delta]:
    """Returns the deltas of a stream."""
    return [event.body for event in events if isinstance(event.body, Delta)]


def require_valid(messages: Sequence[Message]) -> None:
    """Checks that a provider accepts the window: system message first, each call followed by its return, unique ids.

    Requests for approval and their answers are mnemesh's own records. Providers do not receive them.
    """
    assert messages[0].role is Role.SYSTEM
    ids = [message.id for message in messages]
    assert len(ids) == len(set(ids)), "a message stands twice"
    open_calls: list[str] = []
    seen: set[str] = set()
    for message in messages:
        if message.role is Role.APPROVAL:
            continue
        if message.role is Role.TOOL:
            assert [item.tool_call_id for item in message.tool_returns] == open_calls, "returns fit their calls"
            open_calls = []
            continue
        assert not open_calls, "a call has no return"
        open_calls = [created.id for created in message.tool_calls]
        assert not seen & set(open_calls), "a call id stands twice"
        seen |= set(open_calls)
    assert not open_calls, "the last call has no return"


async def crashed(process: Process) -> None:
    """Waits for the tasks of a process that crashed."""
    tasks = set(process.worker._tasks)
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        error = None if task.cancelled() else task.exception()
        assert error is None or isinstance(error, Crash), error
