"""The suites of lease stores, delta stores, and run retention."""

import asyncio

import pytest
from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import new_id
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.errors import ConversationBusy, LeaseLost
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.events import Claim, Delta, Lease, RunEnd, RunEvent, RunHead, StepStarted, Watched
from mnemesh_orchestrator.model.runs import Run, RunStatus
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.conversations import ConversationStore
from mnemesh_orchestrator.store.deltas import DeltaStore
from mnemesh_orchestrator.store.leases import LeaseStore
from mnemesh_orchestrator.store.run_relations import RunRetention
from mnemesh_orchestrator.store.runs import RunStore

from .records import ORG, OTHER_ORG, a_run, an_agent, an_end, an_event, key, made, ran


async def slot_of(leases: LeaseStore, agent: Agent, instance_id: str = "me") -> Lease:
    return await leases.acquire(ORG, agent.id, agent.default_conversation_id, new_id("run"), instance_id)


class LeaseStoreSuite:
    """Subclass it with fixtures `agents`, `threads`, `runs` and `leases` that return empty stores on `clock`."""

    @pytest.fixture
    async def agent(self, agents: AgentStore, clock: FrozenClock) -> Agent:
        return await made(agents, an_agent(clock))

    async def test_runs_wait_for_a_lock_and_continue_after_it(
        self, runs: RunStore, leases: LeaseStore, agent: Agent, clock: FrozenClock
    ) -> None:
        slot = await slot_of(leases, agent)
        started = [
            await runs.start(None, a_run(agent, clock), instance_id, reject_busy=False) for instance_id in ("me", "you")
        ]
        assert [(item.run.status, item.claim) for item in started] == [(RunStatus.CREATED, None)] * 2
        assert await runs.claim_next(agent.default_conversation_id, "you") is None
        assert await leases.release(slot)
        claim = await runs.claim_next(agent.default_conversation_id, "you")
        assert claim is not None
        assert (claim.run.id, claim.lease.epoch, claim.resumed) == (started[0].run.id, slot.epoch + 1, False)

    async def test_busy_lock_is_refused_without_waiting(
        self, runs: RunStore, leases: LeaseStore, threads: ConversationStore, agent: Agent, clock: FrozenClock
    ) -> None:
        await slot_of(leases, agent)
        for wanted in (
            runs.start(None, a_run(agent, clock), "me", reject_busy=True),
            slot_of(leases, agent, "you"),
            leases.acquire(ORG, agent.id, agent.default_conversation_id, new_id("run"), "me", reclaim=False),
        ):
            with pytest.raises(ConversationBusy) as raised:
                await wanted
            assert raised.value.metadata == {"conversation_id": agent.default_conversation_id}

    async def test_lock_is_not_granted_before_an_earlier_run(
        self, runs: RunStore, leases: LeaseStore, agent: Agent, clock: FrozenClock
    ) -> None:
        first = (await runs.start(None, a_run(agent, clock), "me", reject_busy=False)).claim
        second = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        assert first is not None
        for ahead in (first.run.id, second.run.id):
            with pytest.raises(ConversationBusy) as raised:
                await slot_of(leases, agent)
            assert raised.value.metadata["run_id"] == ahead
            claim = await runs.claim_next(agent.default_conversation_id, "me")
            assert claim is not None
            await runs.finish(claim.lease, RunEnd(an_end(claim.run, clock)), ())
        assert (await slot_of(leases, agent)).epoch == 4

    async def test_lock_request_has_a_place_in_the_queue_of_runs(
        self, runs: RunStore, leases: LeaseStore, agent: Agent, clock: FrozenClock
    ) -> None:
        here, one, two = agent.default_conversation_id, new_id("run"), new_id("run")

        async def asked(slot_id: str, instance_id: str) -> Lease | None:
            return await leases.acquire(ORG, agent.id, here, slot_id, instance_id, reclaim=False, waits=True)

        first = (await runs.start(None, a_run(agent, clock), "me", reject_busy=False)).claim
        assert first is not None
        assert await asked(one, "me") is None
        second = (await runs.start(None, a_run(agent, clock), "you", reject_busy=False)).run
        assert await asked(two, "you") is None
        await runs.finish(first.lease, RunEnd(an_end(first.run, clock)), ())

        assert await runs.claim_next(here, "you") is None, "a position is ahead"
        assert await asked(two, "you") is None
        with pytest.raises(ConversationBusy):
            await runs.start(None, a_run(agent, clock), "me", reject_busy=True)
        slot = await asked(one, "me")
        assert slot is not None
        assert (slot.run_id, slot.epoch) == (one, first.lease.epoch + 1)
        assert await asked(two, "you") is None
        assert await leases.release(slot)
        assert await asked(two, "you") is None, "a run is ahead"
        claim = await runs.claim_next(here, "you")
        assert claim is not None
        assert claim.run.id == second.id
        await runs.finish(claim.lease, RunEnd(an_end(claim.run, clock)), ())

        third = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        assert third.claim is None, "it waits after a position although no lease is held"
        with pytest.raises(ConversationBusy):
            await slot_of(leases, agent)
        last = await asked(two, "you")
        assert last is not None
        assert await leases.leave_queue(here, two), "the slot that a position came to is given back with it"
        claim = await runs.claim_next(here, "me")
        assert claim is not None
        assert claim.run.id == third.run.id

    async def test_place_in_the_queue_expires_unless_it_is_renewed(
        self, runs: RunStore, leases: LeaseStore, agent: Agent, clock: FrozenClock
    ) -> None:
        here, position = agent.default_conversation_id, new_id("run")
        claim = (await runs.start(None, a_run(agent, clock), "me", reject_busy=False)).claim
        assert claim is not None
        assert await leases.acquire(ORG, agent.id, here, position, "you", waits=True) is None
        await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        clock.advance(20)
        assert await leases.acquire(ORG, agent.id, here, position, "you", waits=True) is None
        await runs.finish(claim.lease, RunEnd(an_end(claim.run, clock)), ())
        clock.advance(20)
        assert await runs.claim_next(here, "me") is None
        clock.advance(11)
        claim = await runs.claim_next(here, "me")
        assert claim is not None
        assert await leases.acquire(ORG, agent.id, here, position, "you", waits=True) is None, "other work came first"
        await runs.finish(claim.lease, RunEnd(an_end(claim.run, clock)), ())
        assert await leases.acquire(ORG, agent.id, here, position, "you", waits=True) is not None

    async def test_places_in_the_queue_can_be_left(
        self, runs: RunStore, leases: LeaseStore, agent: Agent, clock: FrozenClock
    ) -> None:
        here, mine, yours = agent.default_conversation_id, new_id("run"), new_id("run")
        slot = await slot_of(leases, agent, "me")
        for position, instance_id in ((mine, "me"), (yours, "you")):
            assert await leases.acquire(ORG, agent.id, here, position, instance_id, reclaim=False, waits=True) is None
        await leases.release(slot)
        with pytest.raises(ConversationBusy):
            await slot_of(leases, agent, "them")
        assert not await leases.leave_queue(here, yours)
        await leases.leave_queues("me")
        assert (await runs.start(None, a_run(agent, clock), "them", reject_busy=True)).claim is not None

    async def test_missing_conversation_has_no_queue(self, leases: LeaseStore, agent: Agent) -> None:
        with pytest.raises(NotFound):
            await leases.acquire(OTHER_ORG, agent.id, agent.default_conversation_id, new_id("run"), "me", waits=True)

    async def test_one_of_many_concurrent_lock_requests_wins(self, leases: LeaseStore, agent: Agent) -> None:
        wanted = [slot_of(leases, agent, f"instance-{number}") for number in range(6)]
        got = await asyncio.gather(*wanted, return_exceptions=True)
        assert sorted(type(item) is Lease for item in got) == [False] * 5 + [True]
        assert {type(item) for item in got} == {Lease, ConversationBusy}

    async def test_expired_lock_or_lock_of_the_same_instance_is_taken_over(
        self, runs: RunStore, leases: LeaseStore, agent: Agent, clock: FrozenClock
    ) -> None:
        first = await slot_of(leases, agent, "me")
        assert (await slot_of(leases, agent, "me")).epoch == 2, "left behind by the same instance"
        await runs.start(None, a_run(agent, clock), "you", reject_busy=False)
        assert await leases.claimable("you") == ()
        clock.advance(30)
        assert await leases.claimable("you") == (agent.default_conversation_id,)
        claim = await runs.claim_next(agent.default_conversation_id, "you")
        assert claim is not None
        assert claim.lease.epoch == 3
        assert await leases.renew([first]) == (first,)
        await leases.release(first)
        assert await leases.renew([claim.lease]) == (), "a lost lease gives nothing back"

    async def test_lock_is_kept_by_renewals(self, leases: LeaseStore, agent: Agent, clock: FrozenClock) -> None:
        slot = await slot_of(leases, agent)
        for _ in range(3):
            clock.advance(20)
            assert await leases.renew([slot]) == ()
        with pytest.raises(ConversationBusy):
            await slot_of(leases, agent, "you")

    async def test_released_run_can_be_claimed_by_any_instance(
        self, runs: RunStore, leases: LeaseStore, agent: Agent, clock: FrozenClock
    ) -> None:
        claim = (await runs.start(None, a_run(agent, clock), "me", reject_busy=False)).claim
        assert claim is not None
        assert await leases.release(claim.lease)
        taken = await runs.claim_next(agent.default_conversation_id, "you")
        assert taken is not None
        assert (taken.run.id, taken.resumed) == (claim.run.id, True)

    async def test_missing_conversation_has_no_lock(self, leases: LeaseStore, agent: Agent) -> None:
        here = agent.default_conversation_id
        for organization, agent_id, conversation_id in (
            (OTHER_ORG, agent.id, here),
            (ORG, new_id("agent"), here),
            (ORG, agent.id, new_id("conv")),
        ):
            with pytest.raises(NotFound):
                await leases.acquire(organization, agent_id, conversation_id, new_id("run"), "me")

    async def test_watch_reports_changes_by_other_instances(
        self, agents: AgentStore, runs: RunStore, leases: LeaseStore, agent: Agent, clock: FrozenClock
    ) -> None:
        mine = (await runs.start(None, a_run(agent, clock), "me", reject_busy=False)).claim
        waiting = (await runs.start(None, a_run(agent, clock), "you", reject_busy=False)).run
        second = await made(agents, an_agent(clock))
        slot = await slot_of(leases, second)
        assert mine is not None
        gone = new_id("run")
        seen = await leases.watch([mine.lease, slot], [waiting.id, gone])
        assert seen == Watched((), (), {waiting.id: RunHead(0, ended=False)})

        assert not await leases.request_cancel(OTHER_ORG, mine.run.id)
        assert await leases.request_cancel(ORG, mine.run.id)
        await runs.write(mine.lease, events=[an_event(mine.run, 1, clock), an_event(mine.run, 2, clock)])
        seen = await leases.watch([mine.lease, slot], [mine.run.id])
        assert seen == Watched((), (mine.run.id,), {mine.run.id: RunHead(2, ended=False)})

        clock.advance(30)
        taken = await runs.claim_next(agent.default_conversation_id, "you")
        await slot_of(leases, second, "you")
        assert taken is not None
        assert taken.cancelled, "the process that takes it over ends it"
        assert (await leases.watch([mine.lease, slot], [])).lost == (mine.lease, slot)
        await runs.finish(taken.lease, RunEnd(an_end(taken.run, clock)), ())
        assert await leases.watch([], [mine.run.id]) == Watched((), (), {mine.run.id: RunHead(2, ended=True)})
        assert not await leases.request_cancel(ORG, mine.run.id)


def a_delta(run: Run, number: int, clock: FrozenClock, *, epoch: int = 1) -> RunEvent:
    body = Delta("message-1", "otid", number, "assistant", f"piece {number}")
    return RunEvent(run.id, clock.now(), body, None, "step-1", (epoch, number))


class DeltaStoreSuite:
    """Subclass it with fixtures `agents`, `runs` and `deltas` that return empty stores on `clock`."""

    @pytest.fixture
    async def claim(self, agents: AgentStore, runs: RunStore, clock: FrozenClock) -> Claim:
        agent = await made(agents, an_agent(clock))
        claim = (await runs.start(None, a_run(agent, clock, background=True), "me", reject_busy=False)).claim
        assert claim is not None
        return claim

    async def replayed(
        self, deltas: DeltaStore, run: Run, after: int = 0, position: tuple[int, int] = (0, 0)
    ) -> list[RunEvent]:
        """Returns all stored events, as a stream reads them."""
        found: list[RunEvent] = []
        since = after
        while batch := await deltas.replay(run.id, after, since, position):
            found += batch
            after = max([after, *(event.sequence for event in batch if event.sequence)])
            position = max([position, *(event.position for event in batch if event.position)])
        return found

    async def test_deltas_are_read_between_the_durable_events(
        self, runs: RunStore, deltas: DeltaStore, claim: Claim, clock: FrozenClock
    ) -> None:
        run, lease = claim.run, claim.lease
        live = {number: a_delta(run, number, clock) for number in range(1, 6)}
        durable = {number: an_event(run, number, clock) for number in range(1, 4)}
        started = RunEvent(run.id, clock.now(), StepStarted(2, 1), None, None, (1, 6))
        await deltas.append(lease, [(0, live[1]), (0, live[2])])
        await runs.write(lease, events=[durable[1], durable[2]])
        await deltas.append(lease, [(2, live[3])])
        await runs.write(lease, events=[durable[3]])
        await deltas.append(lease, [(3, live[4]), (3, live[5]), (3, started)])
        whole = [live[1], live[2], durable[1], durable[2], live[3], durable[3], live[4], live[5], started]
        assert await self.replayed(deltas, run) == whole
        assert await self.replayed(deltas, run, 2) == whole[4:]
        assert await self.replayed(deltas, run, 3) == whole[6:]
        # In the middle of a batch the whole of it comes again; its numbers tell what was seen.
        assert await deltas.replay(run.id, 3, 0, (1, 4)) == (live[4], live[5], started)
        assert await deltas.replay(run.id, 3, 0, (1, 6)) == ()

    async def test_deltas_of_several_reads_keep_their_order(
        self, runs: RunStore, deltas: DeltaStore, claim: Claim, clock: FrozenClock
    ) -> None:
        run, lease, whole = claim.run, claim.lease, []
        live = [a_delta(run, number, clock) for number in range(1, 1202)]
        durable = [an_event(run, number, clock) for number in range(1, 1202)]
        for number, event in enumerate(live):
            whole += [event, durable[number]]
        await runs.write(lease, events=durable)
        for at in range(0, 1201, 100):
            await deltas.append(lease, list(enumerate(live))[at : at + 100])
        assert await self.replayed(deltas, run) == whole

    async def test_takeover_restarts_the_numbers_under_its_epoch(
        self, runs: RunStore, deltas: DeltaStore, claim: Claim, clock: FrozenClock
    ) -> None:
        run = claim.run
        before = [a_delta(run, number, clock) for number in (1, 2)]
        await deltas.append(claim.lease, [(0, event) for event in before])
        clock.advance(30)
        taken = await runs.claim_next(run.conversation_id, "you")
        assert taken is not None
        assert taken.claims == 1
        with pytest.raises(LeaseLost):
            await deltas.append(claim.lease, [(0, a_delta(run, 3, clock))])
        behind = a_delta(run, 1, clock, epoch=2)
        for _ in range(2):
            await deltas.append(taken.lease, [(0, behind)])
        assert await self.replayed(deltas, run) == [*before, behind]


class RetentionSuite:
    """Subclass it with fixtures `agents`, `runs`, `deltas` and `retention` of one store on `clock`."""

    @pytest.fixture
    async def agent(self, agents: AgentStore, clock: FrozenClock) -> Agent:
        return await made(agents, an_agent(clock))

    async def test_old_runs_are_deleted_with_all_their_rows(
        self, runs: RunStore, deltas: DeltaStore, retention: RunRetention, agent: Agent, clock: FrozenClock
    ) -> None:
        request = key("SendMessage")
        claim = (await runs.start(request, a_run(agent, clock, otid="o-1"), "me", reject_busy=False)).claim
        assert claim is not None
        old = claim.run
        await deltas.append(claim.lease, [(0, a_delta(old, 1, clock))])
        await runs.finish(claim.lease, RunEnd(an_end(old, clock)), [an_event(old, 1, clock)])
        clock.advance(3600)
        recent = await ran(runs, agent, clock)
        running = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        waiting = await runs.start(None, a_run(agent, clock), "me", reject_busy=False)

        assert await retention.purge_runs(old.created_at) == 0
        assert (await runs.start(request, a_run(agent, clock, otid="o-1"), "me", reject_busy=False)).replayed
        assert await retention.purge_runs(recent.created_at) == 1
        with pytest.raises(NotFound):
            await runs.get(ORG, old.id)
        assert await runs.events(old.id, 0, 10) == ()
        assert await deltas.replay(old.id, 0, 0, (0, 0)) == ()
        assert not (await runs.start(request, a_run(agent, clock, otid="o-1"), "me", reject_busy=False)).replayed

        clock.advance(3600)
        assert await retention.purge_runs(clock.now()) == 1, "what has not ended stays, however old it is"
        for unfinished in (running, waiting):
            assert not (await runs.get(ORG, unfinished.run.id)).status.ended

    async def test_old_runs_are_deleted_in_batches(
        self, runs: RunStore, retention: RunRetention, agent: Agent, clock: FrozenClock
    ) -> None:
        for _ in range(201):
            await ran(runs, agent, clock)
        clock.advance(1)
        assert await retention.purge_runs(clock.now()) == 201
