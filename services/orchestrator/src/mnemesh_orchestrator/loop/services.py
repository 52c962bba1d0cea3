"""What turns share: their metrics, and their calls of other services, with repetitions and the reads of a beginning."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

import structlog
from mnemesh_kit.errors import (
    TEMPORARY,
    DeadlineExceeded,
    MnemeshError,
    ServerBusy,
    StorageFull,
    Unavailable,
    typed_error,
)
from mnemesh_kit.metrics import SECONDS, Counter, Histogram, Metric
from mnemesh_kit.retries import Backoff
from mnemesh_kit.time import Clock
from mnemesh_types.archival import ArchivalSummary
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.builtin.files import WHAT as FILES
from mnemesh_orchestrator.clients.services import Services
from mnemesh_orchestrator.errors import LeaseLost
from mnemesh_orchestrator.model.agents import AGENT_TYPES, Agent
from mnemesh_orchestrator.model.conversations import ContextWindow, Conversation
from mnemesh_orchestrator.model.core_memory import CoreMemory
from mnemesh_orchestrator.model.events import Lease
from mnemesh_orchestrator.model.files import Directories, wanted_limits
from mnemesh_orchestrator.model.models import ModelInfo
from mnemesh_orchestrator.model.rules import CustomTool
from mnemesh_orchestrator.model.runs import Run, StopReason
from mnemesh_orchestrator.prompt.assembly import directories_of, directories_section

MAX_MODELS: Final = 100
"""The number of models that get label values of their own. Organizations may register providers and models."""
OTHER: Final = "other"
CUSTOM: Final = "custom"
OK: Final = "OK"


class TurnMetrics:
    """Counts what the runs of this process do."""

    def __init__(self) -> None:
        self.runs = Counter("mnemesh_runs", "Ended runs by status and stop reason.", ["status", "reason"])
        self.run_seconds = Histogram("mnemesh_run_seconds", "Duration of runs that were executed.", ["status"])
        self.provider_seconds = Histogram(
            "mnemesh_provider_seconds",
            "Duration of calls of models, with the adapter's repetitions, by outcome: OK or an error reason.",
            ["provider", "model", "outcome"],
            buckets=(*SECONDS, 900.0),
        )
        self.provider_tokens = Counter(
            "mnemesh_provider_tokens",
            "Tokens that providers reported. The kind cached_input is part of prompt, reasoning part of completion.",
            ["provider", "model", "kind"],
        )
        self.tool_runs = Counter(
            "mnemesh_tool_runs",
            "Executed tool calls. The tool is the name of a built-in tool, or custom.",
            ["tool", "outcome"],
        )
        self.takeovers = Counter(
            "mnemesh_lease_takeovers", "Runs that this process took up after an earlier holder of their lease."
        )
        self.extractions = Counter(
            "mnemesh_memory_extractions",
            "Ranges of messages whose facts were to be extracted, by outcome: processed; unreadable, after which the "
            "range stays open; or failed.",
            ["outcome"],
        )
        self.budget_refusals = Counter(
            "mnemesh_budget_refusals",
            "Runs that a budget refused or stopped, by the limit that was reached.",
            ["limit"],
        )
        self._models: set[tuple[str, str]] = set()

    @property
    def all(self) -> tuple[Metric, ...]:
        """The metrics to register."""
        counted = (self.runs, self.run_seconds, self.provider_seconds, self.provider_tokens)
        return (*counted, self.tool_runs, self.takeovers, self.extractions, self.budget_refusals)

    def run_ended(self, run: Run) -> None:
        """Counts a run that has ended."""
        reason = run.stop_reason.value if run.stop_reason is not None else ""
        self.runs.inc(run.status.value, reason)
        if run.total_ms is not None:
            self.run_seconds.observe(run.total_ms / 1e3, run.status.value)
        if run.stop_reason is StopReason.BUDGET_EXCEEDED and run.error is not None:
            self.budget_exceeded(run.error.metadata)

    def budget_exceeded(self, metadata: Mapping[str, str]) -> None:
        """Counts a run that a budget refused or stopped, by the metadata of its error."""
        self.budget_refusals.inc(metadata["limit"])

    def model_called(self, model: ModelInfo, seconds: float, usage: Usage, error: BaseException | None = None) -> None:
        """Counts a call of a model, and the tokens that its provider reported."""
        labels = self._model_labels(model)
        self.provider_seconds.observe(seconds, *labels, _outcome(error))
        for kind, tokens in (
            ("prompt", usage.prompt_tokens),
            ("completion", usage.completion_tokens),
            ("cached_input", usage.cached_input_tokens),
            ("reasoning", usage.reasoning_tokens),
        ):
            if tokens:
                self.provider_tokens.inc(*labels, kind, by=tokens)

    def memories_extracted(self, outcome: str) -> None:
        """Counts a range of messages whose extraction ended."""
        self.extractions.inc(outcome)

    def tool_called(self, name: str, built_in: Collection[str], *, ok: bool) -> None:
        """Counts a tool call that was executed."""
        self.tool_runs.inc(name if name in built_in else CUSTOM, "success" if ok else "error")

    def _model_labels(self, model: ModelInfo) -> tuple[str, str]:
        labels = model.provider, model.provider_model
        if labels not in self._models:
            if len(self._models) == MAX_MODELS:
                return OTHER, OTHER
            self._models.add(labels)
        return labels


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return OK
    if isinstance(error, asyncio.CancelledError) or not isinstance(error, Exception):
        return "CANCELLED"
    return typed_error(error).reason


T = TypeVar("T")

_log = structlog.get_logger("mnemesh.loop")

SERVICE_BACKOFF: Final = Backoff(first=0.2, maximum=15.0, jitter=0.5)
RESTART_SECONDS: Final = 5.0
"""The limit for a caller who waits and whose run is not accepted yet; longer than the restart of a service."""


@dataclass(frozen=True, eq=False)
class RetryPolicy:
    """Retries calls to other services during a step. Calls must be idempotent, or be repeated after NOT_BEGUN only.

    Args:
        clock: the source of elapsed time.
        seconds: the time after which a failed call is not repeated.
        sleep: waits between attempts.
    """

    clock: Clock
    seconds: float = 900.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def call(
        self,
        call: Callable[[], Awaitable[T]],
        seconds: float | None = None,
        errors: tuple[type[MnemeshError], ...] = TEMPORARY,
    ) -> T:
        """Returns the result of the call; repeats it while the infrastructure fails.

        Args:
            call: the call to make.
            seconds: a shorter limit than the one for a step.
            errors: the errors after which the call may be repeated.

        Raises:
            Unavailable, DeadlineExceeded, StorageFull, ServerBusy: the service did not recover within the limit.
        """
        began, attempt = self.clock.monotonic(), 0
        limit = self.seconds if seconds is None else min(seconds, self.seconds)
        while True:
            try:
                return await call()
            except errors as error:
                left = began + limit - self.clock.monotonic()
                if left <= 0:
                    raise
                attempt += 1
                delay = min(SERVICE_BACKOFF.delay(attempt), left)
                _log.warning("service_unavailable", attempt=attempt, retry_in=round(delay, 2), error=error.message)
                await self.sleep(delay)


def note_of(what: str) -> str:
    """Returns the note for the model that a service cannot be reached."""
    return f"{what} cannot be reached at the moment. Go on without, and say so where it matters."


class OptionalServices:
    """Calls services without which a turn continues.

    The first turn that finds a service unavailable waits for its restart. If it stays unavailable, later turns do not
    wait until it has answered again.
    """

    def __init__(self, retry: RetryPolicy, seconds: float) -> None:
        """Creates the calls.

        Args:
            retry: repeats calls.
            seconds: the longest wait for a service.
        """
        self._retry = retry
        self._seconds = seconds
        self._missing: set[str] = set()

    async def call(self, call: Callable[[], Awaitable[T]], what: str) -> tuple[T | None, str]:
        """Returns the result of a call; None and a note for the model if the service is unavailable.

        Args:
            call: the call. It is idempotent.
            what: what the service provides, as the model knows it.

        Raises:
            StorageFull: the disk of the service is full, which is not a reason to go on without what the call stores.
        """
        try:
            result = await self._retry.call(call, 0.0 if what in self._missing else self._seconds)
        except (Unavailable, DeadlineExceeded, ServerBusy) as error:
            self._missing.add(what)
            _log.warning("service_unavailable", missing=what, error=error.message)
            return None, note_of(what)
        self._missing.discard(what)
        return result, ""


class RecallWrites:
    """Gives writes to recall their epoch.

    The orchestrator's database decides who holds a conversation. Recall only refuses writes of earlier holders, by
    their lower epoch. If it refuses a lease that is held, its epoch comes from a database that was replaced by an older
    backup, or from a caller that may not write. The lease then overtakes it.
    """

    def __init__(self, overtake: Callable[[Lease, int], Awaitable[int]]) -> None:
        """Creates the writes of one process.

        Args:
            overtake: raises the epochs of a held lease above one that recall knows; see `LeaseStore.overtake`.
        """
        self._overtake = overtake
        self._raised: WeakKeyDictionary[Lease, int] = WeakKeyDictionary()

    async def write(self, lease: Lease, write: Callable[[int], Awaitable[T]]) -> T:
        """Returns the result of a write, which gets the epoch of the lease."""
        epoch = self._raised.get(lease, lease.recall_epoch)
        try:
            return await write(epoch)
        except LeaseLost as error:
            known = error.metadata.get("epoch", "")
            if not known.isdecimal() or int(known) <= epoch:
                raise
            raised = await self._overtake(lease, int(known))
            _log.warning("epoch_overtaken", conversation_id=lease.conversation_id, epoch=raised, known=int(known))
            self._raised[lease] = raised
            return await write(raised)


_KEPT_WINDOWS = 256


CUSTOM_TOOLS: Final = "Your custom tools"

Essentials = tuple[ContextWindow, CoreMemory]
"""The data that every turn needs: the window of its conversation, and core memory."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """The data that a turn begins with. `notes` tell the model about unavailable services."""

    window: ContextWindow
    core: CoreMemory
    custom: tuple[CustomTool, ...]
    directories: str
    """The section of the system message about files."""
    notes: tuple[str, ...]

    @property
    def has_tools(self) -> bool:
        """False if the agent has stored tools that could not be read."""
        return note_of(CUSTOM_TOOLS) not in self.notes


class ContextReader:
    """Caches windows, core memories, summaries and file sections, and validates them by their revision."""

    def __init__(self, services: Services, optional: OptionalServices) -> None:
        self._recall = services.recall
        self._core_memory = services.core_memory
        self._archival = services.archival
        self._tools = services.tools
        self._files = services.files
        self._optional = optional
        self._windows: OrderedDict[str, ContextWindow] = OrderedDict()
        self._memories: OrderedDict[str, CoreMemory] = OrderedDict()
        self._summaries: OrderedDict[str, ArchivalSummary] = OrderedDict()
        self._directories: OrderedDict[str, Directories] = OrderedDict()

    async def gather(
        self,
        conversation: Conversation,
        agent: Agent,
        *,
        whole: bool = False,
        context_window: int | None = None,
        essentials: Awaitable[Essentials] | None = None,
    ) -> Gathered:
        """Returns the data that a turn begins with. The files service is asked only about an agent with folders.

        Args:
            context_window: see `directories`.
            whole: the turn needs its stored tools. Otherwise it begins without them if they are unavailable.
            essentials: window and core memory, if their reads have begun.

        Raises:
            Unavailable, DeadlineExceeded: recall or blocks is unavailable, or tools with `whole`.
        """
        needed = essentials or self.essentials(conversation.id, conversation.agent_id, conversation.holder_id)
        tool_ids = stored_tool_ids(agent)
        custom: tuple[CustomTool, ...] = ()
        if not tool_ids and not agent.holds_folders:
            window, core = await needed
            return Gathered(window, core, custom, "", ())
        (window, core), (custom, note), (directories, files_note) = await asyncio.gather(
            needed, self.custom_tools(tool_ids, whole=whole), self.directories(agent, context_window)
        )
        if directories is None:
            directories = directories_of(window.messages[0].text)
        return Gathered(window, core, custom, directories, tuple(filter(None, (note, files_note))))

    def essentials(self, conversation_id: str, agent_id: str, holder_id: str | None) -> asyncio.Future[Essentials]:
        """Begins to read the window of a conversation and core memory. See `core_memory` for the holder."""
        return asyncio.gather(self.window(conversation_id), self.core_memory(agent_id, holder_id))

    async def window(self, conversation_id: str) -> ContextWindow:
        """Returns the current window of a conversation."""
        known = self._windows.get(conversation_id)
        fresh = await self._recall.get_context(conversation_id, known.version if known else None)
        return self.remember(fresh or _kept(known))

    async def window_ids(self, conversation_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Returns the ids of the messages in the current windows, by conversation."""
        return await self._recall.window_ids(conversation_ids) if conversation_ids else {}

    def remember(self, window: ContextWindow) -> ContextWindow:
        """Caches a window for the next turn of its conversation, and returns it."""
        return _keep(self._windows, window.conversation_id, window)

    async def core_memory(self, agent_id: str, holder_id: str | None = None) -> CoreMemory:
        """Returns the agent's current blocks. A holder id selects the view of a conversation with its own blocks."""
        known = self._memories.get(holder_id or agent_id)
        fresh = await self._core_memory.get(agent_id, known.revision if known else None, holder_id)
        return _keep(self._memories, holder_id or agent_id, fresh or _kept(known))

    def remember_memory(self, memory: CoreMemory, holder_id: str | None = None) -> CoreMemory:
        """Caches core memory that an edit has returned, and returns it."""
        return _keep(self._memories, holder_id or memory.agent_id, memory)

    async def custom_tools(
        self, tool_ids: tuple[str, ...], *, whole: bool = False
    ) -> tuple[tuple[CustomTool, ...], str]:
        """Returns stored tools. Without `whole`, returns none and a note for the model if they are unavailable."""
        if not tool_ids:
            return (), ""
        if whole:
            return await self._tools.definitions(ids=tool_ids), ""
        found, note = await self._optional.call(lambda: self._tools.definitions(ids=tool_ids), CUSTOM_TOOLS)
        return found or (), note

    async def read_tools(self, agent: Agent) -> tuple[CustomTool, ...]:
        """Returns the agent's stored tools. Raises Unavailable, DeadlineExceeded, ServerBusy."""
        return (await self.custom_tools(stored_tool_ids(agent), whole=True))[0]

    async def archival_summary(self, agent_id: str) -> tuple[ArchivalSummary, str]:
        """Returns the size of the agent's archival memory; the last known one and a note if it is unavailable."""
        known = self._summaries.get(agent_id)
        if_revision = known.revision if known else None
        fresh, note = await self._optional.call(
            lambda: self._archival.summary(agent_id, if_revision), "Your archival memory"
        )
        if fresh is not None:
            _keep(self._summaries, agent_id, fresh)
        return fresh or known or ArchivalSummary(), note

    async def directories(self, agent: Agent, context_window: int | None = None) -> tuple[str | None, str]:
        """Returns the section of the system message about files, and a note if the files service is unavailable.

        The last known section is returned then, or None if there is none.

        Args:
            context_window: the tokens of the window of the agent's model, by which its limits are set; None leaves
                them as they are.
        """
        if not agent.holds_folders:
            return "", ""
        known = self._directories.get(agent.id)
        fresh, note = await self._optional.call(lambda: self._read_directories(agent, known, context_window), FILES)
        current = fresh or known
        if current is None:
            return None, note
        _keep(self._directories, agent.id, current)
        return directories_section(current, is_react=not AGENT_TYPES[agent.type].shows_blocks), note

    async def _read_directories(
        self, agent: Agent, known: Directories | None, context_window: int | None
    ) -> Directories:
        fresh = await self._files.directories(agent.id, known.revision if known else None)
        current = fresh or _kept(known)
        if context_window is None:
            return current
        settings = agent.max_files_open, agent.per_file_view_window_char_limit
        wanted = wanted_limits(current.limits, context_window, *settings)
        if wanted == current.limits:
            return current
        try:
            await self._files.set_limits(f"{agent.id}/limits/{current.revision}", agent.id, wanted)
        except StorageFull as error:  # a later turn sets them
            _log.warning("limits_of_files_not_set", error=error.message)
            return current
        return await self._files.directories(agent.id) or current


def stored_tool_ids(agent: Agent) -> tuple[str, ...]:
    """Returns the ids of the agent's stored tools."""
    return tuple(tool.tool_id for tool in agent.tools if tool.tool_id is not None)


def _kept(known: T | None) -> T:
    if known is None:
        raise MnemeshError("A service answered not_modified to a request without a revision.")
    return known


def _keep(kept: "OrderedDict[str, T]", key: str, value: T) -> T:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > _KEPT_WINDOWS:
        kept.popitem(last=False)
    return value
