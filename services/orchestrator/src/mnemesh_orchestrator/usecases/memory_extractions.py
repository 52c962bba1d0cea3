"""Facts that are extracted from messages without a compaction: after turns, in the background, and on demand."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from itertools import groupby
from typing import Final

import structlog
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import (
    Aborted,
    DeadlineExceeded,
    FailedPrecondition,
    MnemeshError,
    NotFound,
    RequestIdReused,
    ResourceExhausted,
    Unavailable,
)
from mnemesh_kit.ids import derive_id
from mnemesh_kit.retries import Backoff
from mnemesh_kit.time import Clock
from mnemesh_types.messages import Message, Role

from mnemesh_orchestrator.clients.recall import EpisodesClient, RecallClient
from mnemesh_orchestrator.compaction.episodic import FactExtractor, Passage, UnreadableMemories
from mnemesh_orchestrator.compaction.extraction import rendered_length
from mnemesh_orchestrator.compaction.planner import SummaryCall
from mnemesh_orchestrator.loop.services import TurnMetrics
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.budgets import Payer, Spending
from mnemesh_orchestrator.model.conversations import MessageQuery
from mnemesh_orchestrator.model.core_memory import memory_access
from mnemesh_orchestrator.model.episodes import (
    EpisodeCommit,
    ExtractedRange,
    ExtractionClaim,
    ExtractionJob,
    ExtractionReport,
    MemoryScope,
    require_calls,
)
from mnemesh_orchestrator.prompt.assembly import senders_of
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.budgets import BudgetStore
from mnemesh_orchestrator.store.memory_extractions import MemoryExtractionStore

_PAGE: Final = 100
_CHARACTERS: Final = 24_000
_EARLIER: Final = 6
_SPOKEN: Final = frozenset({Role.USER, Role.ASSISTANT, Role.TOOL})

_log = structlog.get_logger("mnemesh.extraction")

FAILURE_DELAYS: Final = Backoff(first=30.0, maximum=3_600.0)
"""The delays after failures of an extraction in the background."""
MAX_UNREADABLE: Final = 5
"""The failures in a row after which unreadable answers are not asked for again before the next turn or request."""
_DUE_AGENTS: Final = 8
_CALLS_PER_CLAIM: Final = 20
_CHARACTERS_PER_TOKEN: Final = 4
_WAITED: Final = (Unavailable, DeadlineExceeded, ResourceExhausted, Aborted)


@dataclass(frozen=True, slots=True)
class Passages:
    """The next messages: those with something to extract, the number of all, and the newest sequence id."""

    passages: tuple[Passage, ...]
    message_count: int
    until: int


@dataclass(frozen=True, slots=True)
class MessageReader:
    """Reads messages in the order of their sequence ids."""

    recall: RecallClient

    async def read_passages(self, agent: Agent, processed: int) -> Passages | None:
        """Returns the messages after a sequence id, as many as a model can read at once; None if there are none."""
        query = MessageQuery(page_size=_PAGE, agent_ids=(agent.id,), after_sequence_id=processed)
        page = (await self.recall.list_messages(query)).messages
        if not page:
            return None
        taken = page[: _end(page)]
        spoken = [message for message in taken if message.role in _SPOKEN and not message.is_err]
        passages: list[Passage] = []
        for conversation_id, messages in _by_conversation(spoken):
            earlier = await self._earlier(agent, conversation_id, messages[0])
            passages += _passages(agent, conversation_id, messages, earlier)
        return Passages(tuple(passages), len(taken), taken[-1].sequence_id)

    async def _earlier(self, agent: Agent, conversation_id: str | None, first: Message) -> tuple[Message, ...]:
        """Returns the last messages of the conversation before one."""
        query = MessageQuery(
            page_size=_EARLIER * 4,
            ascending=False,
            agent_ids=(agent.id,),
            roles=(Role.USER, Role.ASSISTANT),
            until_sequence_id=first.sequence_id - 1,
        )
        if first.sequence_id <= 1:
            return ()
        found = (await self.recall.list_messages(query)).messages
        own = [message for message in found if message.conversation_id == conversation_id][:_EARLIER]
        return tuple(reversed(own))


def _end(messages: Sequence[Message]) -> int:
    """Returns the number of messages that fit, up to the end of a turn if one ends among them."""
    size, end = 0, 0
    for message in messages:
        size += rendered_length((message,))
        if size > _CHARACTERS and end:
            break
        end += 1
    if end == len(messages) and end < _PAGE:
        return end
    starts = [index for index, message in enumerate(messages[: end + 1]) if index and _starts_turn(message)]
    return starts[-1] if starts else end


def _starts_turn(message: Message) -> bool:
    return message.is_from_user


def _by_conversation(messages: Iterable[Message]) -> list[tuple[str | None, list[Message]]]:
    """Returns the messages by conversation. Those without one, such as imported ones, form one dialogue."""
    found: dict[str | None, list[Message]] = {}
    for message in messages:
        found.setdefault(message.conversation_id, []).append(message)
    return list(found.items())


def _passages(
    agent: Agent, conversation_id: str | None, messages: Sequence[Message], earlier: tuple[Message, ...]
) -> list[Passage]:
    """Returns the messages of a conversation by scope. Those before the first user message have the sender before."""
    turns: list[list[Message]] = [[]]
    for message in messages:
        if _starts_turn(message) and any(_starts_turn(other) for other in turns[-1]):
            turns.append([])
        turns[-1].append(message)
    before = senders_of(earlier)[-1:]
    scoped: list[tuple[MemoryScope, list[Message]]] = []
    for turn in turns:
        before = senders_of(message for message in turn if _starts_turn(message)) or before
        access = memory_access(
            agent.id, agent.memory_scope, agent.memory_extraction, conversation_id=conversation_id, senders=before
        )
        scoped.append((access.stored, turn))
    passages: list[Passage] = []
    for scope, group in groupby(scoped, key=lambda item: item[0]):
        own = tuple(message for _, turn in group for message in turn)
        # What another sender said before must not become a fact of this one.
        is_others = not set(senders_of(earlier)) <= set(senders_of(own))
        if any(_starts_turn(message) and message.text.strip() for message in own):
            passages.append(Passage(scope, conversation_id, own, () if is_others else earlier))
        earlier = own[-_EARLIER:]
    return passages


class MemoryExtractionService:
    """Extracts facts from the messages of agents. Every message is processed once, also after a crash.

    What a model extracted is kept with the agent's progress before recall stores it, under a request id that is derived
    from the range of messages; only then does the progress move on.
    """

    def __init__(
        self,
        store: MemoryExtractionStore,
        agents: AgentStore,
        reader: MessageReader,
        episodes: EpisodesClient,
        extractor: FactExtractor,
        clock: Clock,
        metrics: TurnMetrics,
        *,
        instance_id: str,
        tokens_per_day: int,
        budgets: BudgetStore,
    ) -> None:
        """Creates the service.

        Args:
            store: the progress of agents.
            agents: the records of agents.
            reader: reads messages that are not processed.
            episodes: stores facts.
            extractor: calls models.
            metrics: counts calls of models.
            instance_id: identifies this process.
            tokens_per_day: the tokens of an organization per UTC day; 0 is unlimited.
            budgets: the budgets that pay for calls of models.
        """
        self._store = store
        self._budgets = budgets
        self._agents = agents
        self._reader = reader
        self._episodes = episodes
        self._extractor = extractor
        self._clock = clock
        self._metrics = metrics
        self._instance_id = instance_id
        self._tokens_per_day = tokens_per_day
        self._active: set[str] = set()

    async def extract(self, caller: Principal, agent_id: str, max_calls: int) -> ExtractionReport:
        """Processes the messages of an agent that are not processed yet, oldest first, with at most `max_calls` calls.

        Raises:
            InvalidArgument: `max_calls` is out of bounds.
            Aborted: another call or process extracts now.
            FailedPrecondition: no model can extract.
            Unavailable: the model or recall did not answer before anything was processed.
            UnreadableMemories: the answers of the model cannot be read, before anything was processed.
        """
        calls = require_calls(max_calls)
        await self._agents.get(caller.organization_id, agent_id)
        report = await self._run(ExtractionJob(caller.organization_id, agent_id), calls, is_background=False)
        if report is None:
            raise Aborted("Facts of this agent are being extracted. Retry later.", resource_id=agent_id)
        return report

    async def run_due(self) -> None:
        """Extracts for every agent that is due, several at a time. Failures are logged and tried again later."""
        try:
            due = await self._store.due(self._instance_id, _DUE_AGENTS)
        except MnemeshError as error:
            _log.warning("due_extractions_unreadable", error=error.message)
            return
        await asyncio.gather(*(self._run_in_background(job) for job in due if job.agent_id not in self._active))

    async def _run_in_background(self, job: ExtractionJob) -> None:
        try:
            with as_principal(Principal(job.organization_id, "")):
                await self._run(job, _CALLS_PER_CLAIM, is_background=True)
        except MnemeshError as error:
            _log.warning("extraction_deferred", agent_id=job.agent_id, error=error.message)
        except Exception:
            _log.exception("extraction_deferred", agent_id=job.agent_id)

    async def _run(self, job: ExtractionJob, max_calls: int, *, is_background: bool) -> ExtractionReport | None:
        if job.agent_id in self._active:
            return None
        self._active.add(job.agent_id)
        try:
            claim = await self._store.claim(job, self._instance_id)
            if claim is None:
                return None
            return await self._run_claimed(claim, max_calls, is_background=is_background)
        finally:
            self._active.discard(job.agent_id)

    async def _run_claimed(self, claim: ExtractionClaim, max_calls: int, *, is_background: bool) -> ExtractionReport:
        report = ExtractionReport()
        try:
            await _Extraction(self, claim, report, max_calls).run()
        except BaseException as error:
            is_permanent = isinstance(error, FailedPrecondition)
            delay = FAILURE_DELAYS.maximum if is_permanent else FAILURE_DELAYS.delay(claim.failures + 1)
            due_at = self._clock.now() + timedelta(seconds=delay) if is_background else claim.due_before
            is_unreadable = isinstance(error, UnreadableMemories)
            self._metrics.memories_extracted("unreadable" if is_unreadable else "failed")
            if is_unreadable and is_background and claim.failures + 1 >= MAX_UNREADABLE:
                due_at = None
            if isinstance(error, Exception):
                await self._store.release(claim, due_at, failed=is_background)
            if isinstance(error, MnemeshError) and report.messages and not is_background:
                report.has_more = True
                return report
            raise
        await self._store.release(claim, self._next_due(claim, report, is_background=is_background))
        return report

    def _next_due(self, claim: ExtractionClaim, report: ExtractionReport, *, is_background: bool) -> datetime | None:
        """Returns when the agent is due for the messages that remain; None if none do, or if only requests count."""
        if not report.has_more:
            return None
        if not is_background:
            return claim.due_before
        now = self._clock.now()
        if not report.budget_exhausted:
            return now
        return datetime.combine(now.astimezone(UTC).date() + timedelta(days=1), time(), UTC)

    async def may_call(self, agent: Agent, job: ExtractionJob) -> bool:
        """Returns whether the budget of the day permits a call.

        Raises:
            BudgetExceeded: a budget of the organization or the agent is used up.
        """
        await self._budgets.require(Payer(job.organization_id, job.agent_id))
        usage = await self._store.usage(job, self._clock.now().astimezone(UTC).date())
        most = None if agent.memory_extraction is None else agent.memory_extraction.max_calls_per_day
        if most is not None and usage.agent_calls >= most:
            return False
        return not self._tokens_per_day or usage.organization_tokens < self._tokens_per_day


@dataclass(frozen=True, eq=False)
class _Extraction:
    """The processing of one agent's messages under a claim."""

    service: MemoryExtractionService
    claim: ExtractionClaim
    report: ExtractionReport
    max_calls: int

    async def run(self) -> None:
        """Processes ranges of messages until none is left, or a limit is reached."""
        store, claim = self.service._store, self.claim
        agent = await self.service._agents.get(claim.job.organization_id, claim.job.agent_id)
        processed = claim.processed
        extracted = claim.extracted
        while True:
            if extracted is None:
                extracted = await self._extract_next(agent, processed)
                if extracted is None or not await store.record(claim, extracted):
                    return
            if await self._store_commits(processed, extracted):
                self.report.add(extracted)
                self.service._metrics.memories_extracted("processed")
                processed = extracted.until
                if not await store.advance(claim, processed, sum(len(each.changes) for each in extracted.commits)):
                    return
            elif not await store.discard(claim):
                return
            extracted = None

    async def _extract_next(self, agent: Agent, processed: int) -> ExtractedRange | None:
        """Returns what a model extracts from the next messages; None if there are none, or if a limit is reached."""
        passages = await self.service._reader.read_passages(agent, processed)
        if passages is None:
            return None
        commits: list[EpisodeCommit] = []
        for passage in passages.passages:
            if self.report.calls >= self.max_calls:
                self.report.has_more = True
                return None
            if not await self.service.may_call(agent, self.claim.job):
                self.report.has_more = self.report.budget_exhausted = True
                return None
            calls: list[SummaryCall] = []
            try:
                commit = await self.service._extractor.extract(agent, passage, calls.append)
            finally:
                await self._count(calls)
            if commit is not None:
                commits.append(commit)
        return ExtractedRange(passages.until, passages.message_count, tuple(commits))

    async def _count(self, calls: Sequence[SummaryCall]) -> None:
        service, day = self.service, self.service._clock.now().astimezone(UTC).date()
        for call in calls:
            self.report.calls += 1
            self.report.usage += call.usage
            service._metrics.model_called(call.request.model, call.seconds, call.usage, call.error)
            size = len(call.request_body) + len(call.response_body)
            tokens = call.usage.total_tokens or size // _CHARACTERS_PER_TOKEN
            await service._store.add_usage(self.claim.job, day, tokens)
            payer = Payer(self.claim.job.organization_id, self.claim.job.agent_id)
            await service._budgets.count(payer, Spending.of(call.usage))

    async def _store_commits(self, processed: int, extracted: ExtractedRange) -> bool:
        """Stores the facts in recall. Returns False if messages that they cite were erased meanwhile."""
        for index, commit in enumerate(extracted.commits):
            parts = (self.claim.job.agent_id, str(processed), str(extracted.until), str(index))
            if not await self._commit(derive_id("request", "extraction", *parts), commit):
                return False
        return True

    async def _commit(self, request_id: str, commit: EpisodeCommit) -> bool:
        while commit.changes:
            try:
                await self.service._episodes.commit(request_id, commit)
                return True
            except _WAITED:
                raise
            except RequestIdReused:
                return True  # an earlier attempt stored it, without a fact that was closed meanwhile
            except (NotFound, FailedPrecondition) as error:
                resource = error.metadata.get("fact_id") or error.metadata.get("resource_id", "")
                if resource.startswith("message-"):
                    return False
                smaller = commit.without(resource)
                if smaller == commit:
                    _log.warning("facts_refused", error=error.message)
                    return True
                commit = smaller
            except MnemeshError as error:
                _log.warning("facts_refused", error=error.message)
                return True
        return True
