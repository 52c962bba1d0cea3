"""The suite of the claims of runs in the store: their order in a conversation, and their leases."""

import asyncio
from dataclasses import replace

import pytest
from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import new_id
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.errors import ConversationBusy, LeaseLost
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.events import Lease, RunEnd, RunEvent, StopEvent
from mnemesh_orchestrator.model.inputs import RunConfig
from mnemesh_orchestrator.model.runs import RunStatus, StopReason
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.leases import LeaseStore
from mnemesh_orchestrator.store.runs import RunStore

from .records import ORG, a_run, an_agent, an_answer, an_end, an_event, made


class RunClaimSuite:
    """Subclass it with fixtures `agents`, `runs` and `leases` that return empty stores on `clock`."""

    @pytest.fixture
    async def agent(self, agents: AgentStore, clock: FrozenClock) -> Agent:
        return await made(agents, an_agent(clock))

    async def test_first_run_of_a_conversation_is_claimed_at_once(
        self, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        config = RunConfig(max_steps=3, include_events=("assistant",), override_model="scripted/two")
        run = a_run(agent, clock, config=config, background=True, retried_run_ids=(new_id("run"),))
        started = await runs.start(None, run, "me", reject_busy=False)
        assert not started.replayed
        assert started.run == replace(run, status=RunStatus.RUNNING)
        claim = started.claim
        assert claim is not None
        assert (claim.run, claim.agent, claim.resumed) == (started.run, agent, False)
        assert (claim.conversation.id, claim.conversation.is_default) == (agent.default_conversation_id, True)
        assert claim.lease == Lease(run.id, agent.default_conversation_id, "me", 1)
        assert await runs.get(ORG, run.id) == started.run

    async def test_runs_of_a_conversation_are_claimed_in_order(
        self, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        started = [await runs.start(None, a_run(agent, clock), "me", reject_busy=False) for _ in range(4)]
        assert [item.claim is not None for item in started] == [True, False, False, False]
        assert [item.run.status for item in started] == ["running", "created", "created", "created"]
        claim = started[0].claim
        for number, expected in enumerate(started):
            assert claim is not None
            assert (claim.run.id, claim.lease.epoch) == (expected.run.id, number + 1)
            waits = (await runs.finish(claim.lease, RunEnd(an_end(claim.run, clock)), ())).has_next
            assert waits is (number < 3)
            claim = await runs.claim_next(agent.default_conversation_id, "me")
        assert claim is None

    async def test_one_of_many_concurrent_runs_starts_and_the_others_queue(
        self, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        wanted = [a_run(agent, clock) for _ in range(10)]
        started = await asyncio.gather(*(runs.start(None, run, "me", reject_busy=False) for run in wanted))
        claims = [item.claim for item in started if item.claim is not None]
        assert len(claims) == 1
        served, claim = [], claims[0]
        while claim is not None:
            served.append(claim.run.id)
            await runs.finish(claim.lease, RunEnd(an_end(claim.run, clock)), ())
            claim = await runs.claim_next(agent.default_conversation_id, "me")
        assert sorted(served) == sorted(run.id for run in wanted)

    async def test_refusal_of_a_busy_conversation_names_its_run(
        self, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        first = await runs.start(None, a_run(agent, clock), "me", reject_busy=True)
        refused = a_run(agent, clock)
        with pytest.raises(ConversationBusy) as raised:
            await runs.start(None, refused, "me", reject_busy=True)
        assert raised.value.metadata["run_id"] == first.run.id
        with pytest.raises(NotFound):
            await runs.get(ORG, refused.id)

    async def test_conversations_do_not_wait_for_each_other(
        self, agents: AgentStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        other = await made(agents, an_agent(clock))
        for one in (agent, other):
            assert (await runs.start(None, a_run(one, clock), "me", reject_busy=True)).claim is not None

    async def test_lease_of_another_instance_is_respected_until_it_expires(
        self, runs: RunStore, leases: LeaseStore, agent: Agent, clock: FrozenClock
    ) -> None:
        started = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        assert started.claim is not None
        conversation_id = agent.default_conversation_id
        clock.advance(29)
        assert await runs.claim_next(conversation_id, "you") is None
        assert await leases.claimable("you") == ()
        clock.advance(1)
        assert await leases.claimable("you") == (conversation_id,)
        taken = await runs.claim_next(conversation_id, "you")
        assert taken is not None
        assert (taken.run, taken.resumed) == (started.run, True)
        assert taken.lease == Lease(started.run.id, conversation_id, "you", 2)

    @pytest.mark.parametrize("how", ["renew", "write"])
    async def test_renewals_and_writes_extend_the_lease(
        self, runs: RunStore, leases: LeaseStore, agent: Agent, clock: FrozenClock, how: str
    ) -> None:
        started = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        assert started.claim is not None
        for _ in range(3):
            clock.advance(20)
            await (leases.renew([started.claim.lease]) if how == "renew" else runs.write(started.claim.lease))
        assert await runs.claim_next(agent.default_conversation_id, "you") is None

    async def test_instance_reclaims_its_own_runs_at_once(
        self, runs: RunStore, leases: LeaseStore, agent: Agent, clock: FrozenClock
    ) -> None:
        started = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        assert started.claim is not None
        await runs.write(started.claim.lease, events=[an_event(started.run, 1, clock), an_event(started.run, 2, clock)])
        assert await leases.claimable("me") == (agent.default_conversation_id,)
        again = await runs.claim_next(agent.default_conversation_id, "me")
        assert again is not None
        assert (again.resumed, again.lease.epoch, again.run.last_sequence) == (True, 2, 2)

    async def test_write_after_a_lost_lease_is_refused(
        self, runs: RunStore, leases: LeaseStore, agent: Agent, clock: FrozenClock
    ) -> None:
        started = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        assert started.claim is not None
        old = started.claim.lease
        clock.advance(30)
        taken = await runs.claim_next(agent.default_conversation_id, "you")
        assert taken is not None
        step = new_id("step")
        with pytest.raises(LeaseLost):
            await runs.write(old, entries=[an_answer(step, clock)], events=[an_event(started.run, 1, clock)])
        with pytest.raises(LeaseLost):
            await runs.finish(old, RunEnd(an_end(started.run, clock)), ())
        assert await leases.renew([old]) == (old,)
        assert await runs.journal(started.run.id) == ()
        assert await runs.events(started.run.id, 0, 10) == ()
        assert (await runs.get(ORG, started.run.id)).status is RunStatus.RUNNING
        clock.advance(30)
        assert await leases.claimable("me") == (agent.default_conversation_id,)

    async def test_one_of_many_concurrent_claims_wins(self, runs: RunStore, agent: Agent, clock: FrozenClock) -> None:
        await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        clock.advance(30)
        claims = await asyncio.gather(
            *(runs.claim_next(agent.default_conversation_id, f"instance-{number}") for number in range(6))
        )
        assert len([claim for claim in claims if claim is not None]) == 1

    async def test_queued_run_can_be_ended_and_claimed_run_cannot(
        self, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        first = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        second = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        assert first.claim is not None
        ended = replace(an_end(second.run, clock, StopReason.CANCELLED), status=RunStatus.CANCELLED, last_sequence=1)
        event = RunEvent(second.run.id, clock.now(), StopEvent(StopReason.CANCELLED, RunStatus.CANCELLED), 1)
        assert not await runs.cancel_waiting(an_end(first.run, clock), [an_event(first.run, 1, clock)])
        assert await runs.events(first.run.id, 0, 10) == ()
        assert await runs.cancel_waiting(ended, [event])
        assert not await runs.cancel_waiting(ended, [event])
        assert (await runs.get(ORG, second.run.id)).stop_reason is StopReason.CANCELLED
        assert [found.body for found in await runs.events(second.run.id, 0, 10)] == [event.body]
        assert not (await runs.finish(first.claim.lease, RunEnd(an_end(first.run, clock)), ())).has_next

    async def test_one_of_concurrent_cancellation_and_claim_wins(
        self, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        for _ in range(5):
            first = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
            second = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
            assert first.claim is not None
            await runs.finish(first.claim.lease, RunEnd(an_end(first.run, clock)), ())
            ended = replace(an_end(second.run, clock, StopReason.CANCELLED), status=RunStatus.CANCELLED)
            claim, cancelled = await asyncio.gather(
                runs.claim_next(agent.default_conversation_id, "me"), runs.cancel_waiting(ended, ())
            )
            assert cancelled is (claim is None)
            if claim is not None:
                await runs.finish(claim.lease, RunEnd(an_end(claim.run, clock)), ())
