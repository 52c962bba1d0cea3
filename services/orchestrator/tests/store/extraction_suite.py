"""The suite of stores of extractions of facts: turns that count, claims, progress and usage."""

import asyncio
from dataclasses import replace
from datetime import date, timedelta

import pytest
import pytest_asyncio
from mnemesh_kit.errors import NotFound
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.episodes import (
    Change,
    EpisodeCommit,
    ExtractedRange,
    ExtractionJob,
    ExtractionUsage,
    FactChange,
    MemoryScope,
)
from mnemesh_orchestrator.model.events import RunEnd
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.memory_extractions import MemoryExtractionStore
from mnemesh_orchestrator.store.runs import RunStore

from .records import OTHER_ORG, a_run, an_agent, an_end, made

TODAY = date(2026, 8, 20)


def job_of(agent: Agent) -> ExtractionJob:
    return ExtractionJob(agent.organization_id, agent.id)


class ExtractionStoreSuite:
    """Subclass it with fixtures of the stores over one empty database on the `clock` fixture."""

    @pytest_asyncio.fixture
    async def ada(self, agents: AgentStore, clock: FrozenClock) -> Agent:
        return await made(agents, an_agent(clock))

    async def turn(self, runs: RunStore, agent: Agent, clock: FrozenClock, turns: int) -> None:
        """Completes a turn, twice, as if the first answer were lost."""
        claim = (await runs.start(None, a_run(agent, clock), "me", reject_busy=False)).claim
        assert claim is not None
        end = replace(an_end(claim.run, clock), last_sequence=0)
        for is_repeat in (False, True):
            await runs.finish(claim.lease, RunEnd(end, extraction_turns=turns), (), is_repeat=is_repeat)

    async def test_agent_is_due_after_its_turns_until_it_is_released(
        self, runs: RunStore, extractions: MemoryExtractionStore, ada: Agent, clock: FrozenClock
    ) -> None:
        await self.turn(runs, ada, clock, 2)
        assert await extractions.due("me", 10) == ()
        await self.turn(runs, ada, clock, 2)
        assert await extractions.due("me", 10) == (job_of(ada),)
        claim = await extractions.claim(job_of(ada), "me")
        assert claim is not None
        assert await extractions.due("you", 10) == ()
        assert await extractions.release(claim)
        clock.advance(86_400)
        assert await extractions.due("me", 10) == ()
        # A turn that completes meanwhile counts.
        claim = await extractions.claim(job_of(ada), "me")
        assert claim is not None
        await self.turn(runs, ada, clock, 1)
        assert await extractions.advance(claim, 5)
        assert await extractions.release(claim)
        assert await extractions.due("me", 10) == (job_of(ada),)

    async def test_what_was_extracted_is_kept_until_the_progress_moves_on(
        self, extractions: MemoryExtractionStore, ada: Agent, clock: FrozenClock
    ) -> None:
        change = FactChange(Change.ADD, "The boat is red.", ("message-1",), clock.now(), ("boat",), 0.5, 0.5)
        scope = MemoryScope(ada.id, identity_id="identity-1")
        extracted = ExtractedRange(7, 3, (EpisodeCommit(scope, "conv-1", None, (change,), "m/1"),))
        first = await extractions.claim(job_of(ada), "me")
        assert first is not None
        assert (first.processed, first.extracted, first.due_before) == (0, None, None)
        assert await extractions.record(first, extracted)
        # This instance takes over its own claim, as after a crash; the earlier one changes nothing any more.
        second = await extractions.claim(job_of(ada), "me")
        assert second is not None
        assert second.extracted == extracted
        assert not await extractions.advance(first, 9)
        assert not await extractions.release(first)
        assert await extractions.advance(second, 7)
        third = await extractions.claim(job_of(ada), "me")
        assert third is not None
        assert (third.processed, third.extracted) == (7, None)
        assert await extractions.record(third, extracted)
        assert await extractions.discard(third)
        assert await extractions.release(third, clock.now(), failed=True)
        fourth = await extractions.claim(job_of(ada), "me")
        assert fourth is not None
        assert (fourth.extracted, fourth.failures, fourth.due_before) == (None, 1, clock.now())

    async def test_claim_of_another_instance_holds_until_it_expires(
        self, extractions: MemoryExtractionStore, ada: Agent, clock: FrozenClock
    ) -> None:
        claims = await asyncio.gather(*(extractions.claim(job_of(ada), name) for name in ("me", "you", "they")))
        (first,) = (claim for claim in claims if claim is not None)
        clock.advance(599)
        assert await extractions.due("later", 10) == ()
        assert await extractions.claim(job_of(ada), "later") is None
        clock.advance(2)
        assert await extractions.due("later", 10) == (job_of(ada),)
        taken = await extractions.claim(job_of(ada), "later")
        assert taken is not None
        assert taken.epoch > first.epoch
        assert not await extractions.record(first, ExtractedRange(1, 1, ()))

    async def test_agents_of_others_and_deleted_agents_are_unknown(
        self, agents: AgentStore, extractions: MemoryExtractionStore, ada: Agent
    ) -> None:
        with pytest.raises(NotFound):
            await extractions.claim(ExtractionJob(OTHER_ORG, ada.id), "me")

    async def test_usage_of_a_day(
        self, agents: AgentStore, extractions: MemoryExtractionStore, ada: Agent, clock: FrozenClock
    ) -> None:
        bo = await made(agents, an_agent(clock, "Bo"))
        for agent, tokens in ((ada, 100), (ada, 50), (bo, 7)):
            await extractions.add_usage(job_of(agent), TODAY, tokens)
        await extractions.add_usage(job_of(ada), TODAY - timedelta(days=1), 1_000)
        assert await extractions.usage(job_of(ada), TODAY) == ExtractionUsage(2, 157)
        assert await extractions.usage(job_of(bo), TODAY) == ExtractionUsage(1, 157)
        assert await extractions.usage(ExtractionJob(OTHER_ORG, ada.id), TODAY) == ExtractionUsage()
        await extractions.purge_usage(TODAY)
        assert await extractions.usage(job_of(ada), TODAY - timedelta(days=1)) == ExtractionUsage()
