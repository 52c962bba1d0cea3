"""The measured calls, one at a time, with the minimum number of results that a valid call returns."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from mnemesh.archival.v1 import passages_service_pb2 as archival
from mnemesh.recall.v1 import contexts_pb2
from mnemesh.recall.v1 import messages_service_pb2 as recall
from mnemesh.types.v1 import paging_pb2
from mnemesh_kit.ids import new_id

from benchmarks.memory_load.load import (
    RANKS,
    WINDOW,
    Corpus,
    Loaded,
    agent_of,
    conversation_of,
    message,
    message_of,
    passage,
    tags_of,
    written_at,
)
from benchmarks.memory_services import RunningServices

Call = Callable[[int], Awaitable[int]]
"""A call by number; returns the number of results."""
Opened = Callable[[int], AbstractAsyncContextManager[Call]]
"""Prepares a number of calls, and cleans up after them."""
PAGE: Final = 50
_MESSAGE_MODES: Final = {"hybrid": recall.SEARCH_MODE_HYBRID, "text": recall.SEARCH_MODE_TEXT}
_PASSAGE_MODES: Final = {
    "hybrid": archival.PASSAGE_SEARCH_MODE_HYBRID,
    "text": archival.PASSAGE_SEARCH_MODE_TEXT,
    "vector": archival.PASSAGE_SEARCH_MODE_VECTOR,
}


@dataclass(frozen=True, slots=True)
class Probe:
    """One kind of call."""

    name: str
    scope: str
    """The scope of the call: "agent", "archive" or "organization"."""
    opened: Opened
    aim_ms: float | None = None
    """The target for its median."""
    writes: bool = False
    """True if the call causes background work; the CPU until the services are idle is then included."""


class Probes:
    """The calls on filled stores."""

    def __init__(self, to: RunningServices, loaded: Loaded, corpus: Corpus, seed: int = 3) -> None:
        self._to = to
        self._loaded = loaded
        self._corpus = corpus
        self._seed = seed

    def all(self) -> Iterator[Probe]:
        """Yields all probes; the reads of a service before its writes."""
        yield Probe("GetContext", "agent", self._reading(self._window), aim_ms=5.0)
        yield Probe("GetContext, not modified", "agent", self._reading(self._window_unmoved), aim_ms=5.0)
        # The first read of an agent's messages since the start, and a second one with cached pages.
        for mode, again in (("hybrid", ""), ("text", ""), ("hybrid", ", again")):
            for kind in RANKS:
                call = self._search(mode, kind)
                aim = 15.0 if mode == "hybrid" else None
                yield Probe(f"SearchMessages {mode}, {kind} words{again}", "agent", self._reading(call), aim_ms=aim)
        for kind in RANKS:
            call = self._search("hybrid", kind, whole=True)
            yield Probe(f"SearchMessages hybrid, {kind} words", "organization", self._reading(call))
        yield Probe("ListMessages after the middle", "agent", self._reading(self._list_deep))
        yield Probe("ListMessages after the middle", "organization", self._reading(self._list_everywhere))
        yield Probe("CommitStep", "agent", self._committing, aim_ms=5.0, writes=True)
        for mode in _PASSAGE_MODES:
            yield Probe(f"SearchPassages {mode}, filtered", "archive", self._reading(self._passages(mode)), aim_ms=10.0)
        for mode in _PASSAGE_MODES:
            call = self._passages(mode, whole=True)
            yield Probe(f"SearchPassages {mode}, filtered", "organization", self._reading(call), aim_ms=10.0)
        yield Probe("ListPassages after the middle", "archive", self._reading(self._list_passages))
        yield Probe("InsertPassages of 1", "archive", self._inserting(1), aim_ms=10.0, writes=True)
        yield Probe("InsertPassages of 100", "archive", self._inserting(100), writes=True)

    def _reading(self, call: Call) -> Opened:
        @asynccontextmanager
        async def opened(_count: int) -> AsyncIterator[Call]:
            yield call

        return opened

    def _agent(self, number: int) -> int:
        return random.Random(f"{self._seed} {number}").randrange(self._loaded.dataset.agents)

    async def _window(self, number: int) -> int:
        given = recall.GetContextRequest(conversation_id=conversation_of(self._agent(number)))
        return len((await self._to.recall.GetContext(given)).context.messages)

    async def _window_unmoved(self, number: int) -> int:
        given = recall.GetContextRequest(conversation_id=conversation_of(self._agent(number)), if_version=1)
        return int((await self._to.recall.GetContext(given)).not_modified)

    def _search(self, mode: str, kind: str, *, whole: bool = False) -> Call:
        async def search(number: int) -> int:
            request = recall.SearchMessagesRequest(
                query=self._corpus.query(kind, number),
                mode=_MESSAGE_MODES[mode],
                agent_id=None if whole else agent_of(self._agent(number)),
            )
            return len((await self._to.recall.SearchMessages(request)).hits)

        return search

    async def _list_deep(self, number: int) -> int:
        agent = self._agent(number)
        return await self._listed([agent_of(agent)], message_of(agent, self._loaded.dataset.messages_per_agent // 2))

    async def _list_everywhere(self, number: int) -> int:
        agent = self._loaded.dataset.agents // 2
        return await self._listed([], message_of(agent, (self._loaded.dataset.messages_per_agent // 2 + number) // 2))

    async def _listed(self, agent_ids: list[str], after: str) -> int:
        request = recall.ListMessagesRequest(agent_ids=agent_ids, after_id=after, page_size=PAGE)
        return len((await self._to.recall.ListMessages(request)).messages)

    @asynccontextmanager
    async def _committing(self, count: int) -> AsyncIterator[Call]:
        """Prepares steps of a message and its answer, each in a conversation with a window like the loaded ones."""
        conversations = [await self._conversation(self._agent(number)) for number in range(count)]
        run = new_id("run")

        async def commit(number: int) -> int:
            agent, conversation, step = conversations[number]
            request = recall.CommitStepRequest(
                agent_id=agent_of(agent),
                conversation_id=conversation,
                lease=contexts_pb2.WriterLease(run_id=run, epoch=1),
                step_id=step,
                base_version=1,
                messages=[self._said(agent, conversation, position) for position in range(2)],
            )
            return len((await self._to.recall.CommitStep(request)).sequence_ids)

        yield commit

    async def _conversation(self, agent: int) -> tuple[int, str, str]:
        made = new_id("conv")
        shown = [self._said(agent, made, position) for position in range(WINDOW - 1)]
        system = message(agent, new_id("system"), "You are an assistant with a memory.", made)
        system.conversation_id = made
        request = recall.CreateContextRequest(agent_id=agent_of(agent), conversation_id=made, messages=[system, *shown])
        await self._to.recall.CreateContext(request)
        return agent, made, new_id("step")

    def _said(self, agent: int, conversation: str, position: int) -> Any:
        made = message(agent, position, self._corpus.text(conversation, position))
        made.id, made.conversation_id = new_id("message"), conversation
        return made

    def _passages(self, mode: str, *, whole: bool = False) -> Call:
        dataset = self._loaded.dataset

        async def search(number: int) -> int:
            chance = random.Random(f"{self._seed} {mode} {number}")
            half = dataset.passages_per_archive // 2
            which = archival.PassageFilter(
                tags=tags_of(chance.randrange(dataset.passages_per_archive)),
                start_date=written_at(half // 2).date().isoformat(),
                end_date=written_at(half // 2 + half).date().isoformat(),
            )
            if not whole:
                which.archive_id = chance.choice(self._loaded.archive_ids)
            kind = tuple(RANKS)[number % len(RANKS)]
            request = archival.SearchPassagesRequest(
                query=self._corpus.query(kind, number), mode=_PASSAGE_MODES[mode], filter=which
            )
            return len((await self._to.passages.SearchPassages(request)).hits)

        return search

    async def _list_passages(self, number: int) -> int:
        archive_id = self._loaded.archive_ids[number % len(self._loaded.archive_ids)]
        which = archival.PassageFilter(
            archive_id=archive_id,
            start_date=written_at(self._loaded.dataset.passages_per_archive // 2).date().isoformat(),
        )
        request = archival.ListPassagesRequest(filter=which, page_size=PAGE, order=paging_pb2.SORT_ORDER_ASCENDING)
        return len((await self._to.passages.ListPassages(request)).passages)

    def _inserting(self, count: int) -> Opened:
        @asynccontextmanager
        async def opened(_count: int) -> AsyncIterator[Call]:
            made: list[str] = []

            async def insert(number: int) -> int:
                stamp = new_id("position")
                given = [passage(self._corpus.text(stamp, position), position) for position in range(count)]
                request = archival.InsertPassagesRequest(
                    archive_id=self._loaded.archive_ids[number % len(self._loaded.archive_ids)], passages=given
                )
                results = (await self._to.passages.InsertPassages(request)).results
                made.extend(result.passage.id for result in results)
                return len(results)

            yield insert
            for passage_id in made:
                await self._to.passages.DeletePassage(archival.DeletePassageRequest(passage_id=passage_id))

        return opened
