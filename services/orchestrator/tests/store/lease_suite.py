"""What the store of leases must do, whatever it keeps its rows in."""

import asyncio

import pytest
from engram_kit.clock import FrozenClock
from engram_kit.errors import NotFound
from engram_kit.ids import new_id
from engram_orchestrator.errors import ConversationBusy
from engram_orchestrator.model.agents import Agent
from engram_orchestrator.model.runs import Lease, RunStatus
from engram_orchestrator.store.base import AgentStore, ConversationStore, LeaseStore, RunHead, RunStore, Watched

from .suites import ORG, OTHER_ORG, a_run, an_agent, an_end, an_event, made


async def slot_of(leases: LeaseStore, agent: Agent, owner: str = "me") -> Lease:
    return await leases.take_slot(ORG, agent.id, agent.default_conversation_id, new_id("run"), owner)


class LeaseStoreSuite:
    """Subclass it with fixtures `agents`, `threads`, `runs` and `leases` that give empty stores on `clock`."""

    @pytest.fixture
    async def agent(self, agents: AgentStore, clock: FrozenClock) -> Agent:
        return await made(agents, an_agent(clock))

    async def test_runs_wait_for_a_slot_and_go_on_behind_it(
        self, runs: RunStore, leases: LeaseStore, agent: Agent, clock: FrozenClock
    ) -> None:
        slot = await slot_of(leases, agent)
        started = [await runs.start(None, a_run(agent, clock), owner, reject_busy=False) for owner in ("me", "you")]
        assert [(item.run.status, item.claim) for item in started] == [(RunStatus.CREATED, None)] * 2
        assert await runs.claim_next(agent.default_conversation_id, "you") is None
        assert await leases.release(slot)
        claim = await runs.claim_next(agent.default_conversation_id, "you")
        assert claim is not None
        assert (claim.run.id, claim.lease.epoch, claim.taken_up) == (started[0].run.id, slot.epoch + 1, False)

    async def test_who_does_not_wait_is_told_that_a_slot_is_taken(
        self, runs: RunStore, leases: LeaseStore, threads: ConversationStore, agent: Agent, clock: FrozenClock
    ) -> None:
        await slot_of(leases, agent)
        for wanted in (
            runs.start(None, a_run(agent, clock), "me", reject_busy=True),
            slot_of(leases, agent, "you"),
            leases.take_slot(ORG, agent.id, agent.default_conversation_id, new_id("run"), "me", reclaim=False),
        ):
            with pytest.raises(ConversationBusy) as raised:
                await wanted
            assert raised.value.metadata == {"conversation_id": agent.default_conversation_id}

    async def test_a_slot_is_not_given_ahead_of_a_run(
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
            await runs.finish(claim.lease, an_end(claim.run, clock), (), ())
        assert (await slot_of(leases, agent)).epoch == 4

    async def test_of_many_that_want_a_slot_one_gets_it(self, leases: LeaseStore, agent: Agent) -> None:
        wanted = [slot_of(leases, agent, f"owner-{number}") for number in range(6)]
        got = await asyncio.gather(*wanted, return_exceptions=True)
        assert sorted(type(item) is Lease for item in got) == [False] * 5 + [True]
        assert {type(item) for item in got} == {Lease, ConversationBusy}

    async def test_a_slot_that_lapsed_or_was_left_behind_is_taken_over(
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

    async def test_a_slot_is_kept_by_renewals(self, leases: LeaseStore, agent: Agent, clock: FrozenClock) -> None:
        slot = await slot_of(leases, agent)
        for _ in range(3):
            clock.advance(20)
            assert await leases.renew([slot]) == ()
        with pytest.raises(ConversationBusy):
            await slot_of(leases, agent, "you")

    async def test_a_run_that_is_let_go_of_is_anybodys(
        self, runs: RunStore, leases: LeaseStore, agent: Agent, clock: FrozenClock
    ) -> None:
        claim = (await runs.start(None, a_run(agent, clock), "me", reject_busy=False)).claim
        assert claim is not None
        assert await leases.release(claim.lease)
        taken = await runs.claim_next(agent.default_conversation_id, "you")
        assert taken is not None
        assert (taken.run.id, taken.taken_up) == (claim.run.id, True)

    async def test_there_is_no_slot_where_there_is_no_conversation(self, leases: LeaseStore, agent: Agent) -> None:
        here = agent.default_conversation_id
        for organization, agent_id, conversation_id in (
            (OTHER_ORG, agent.id, here),
            (ORG, new_id("agent"), here),
            (ORG, agent.id, new_id("conv")),
        ):
            with pytest.raises(NotFound):
                await leases.take_slot(organization, agent_id, conversation_id, new_id("run"), "me")

    async def test_what_others_did_to_leases_and_runs_is_seen(
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
        assert taken.cancelled, "whoever takes it over ends it"
        assert (await leases.watch([mine.lease, slot], [])).lost == (mine.lease, slot)
        await runs.finish(taken.lease, an_end(taken.run, clock), (), ())
        assert await leases.watch([], [mine.run.id]) == Watched((), (), {mine.run.id: RunHead(2, ended=True)})
        assert not await leases.request_cancel(ORG, mine.run.id)
