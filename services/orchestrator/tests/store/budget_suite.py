"""The suite of stores of budgets: their limits, periods, usage that is counted with steps, and repeats."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from mnemesh_kit.errors import NotFound, RequestIdReused
from mnemesh_kit.ids import new_id
from mnemesh_kit.sql import Database
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.errors import BudgetExceeded
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.budgets import Payer, Spending
from mnemesh_orchestrator.model.events import RunEnd, TurnClaim
from mnemesh_orchestrator.model.runs import Ancestor, Lineage, RunOrigin, RunStatus, Step
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.budgets import Budgets, BudgetStore
from mnemesh_orchestrator.store.leases import LeaseStore
from mnemesh_orchestrator.store.runs import RunStore
from mnemesh_types.agents import Budget, BudgetLimit, BudgetPeriod, BudgetUsage
from mnemesh_types.usage import Usage

from .records import ALL, ORG, OTHER_ORG, a_run, an_agent, an_end, key, made

DAILY = Budget(limits=(BudgetLimit(BudgetPeriod.DAY, max_tokens=100),))


def a_step(claim: TurnClaim, number: int, tokens: int) -> Step:
    run = claim.run
    return Step(
        id=new_id("step"),
        run_id=run.id,
        agent_id=run.agent_id,
        conversation_id=run.conversation_id,
        number=number,
        model="scripted/one",
        provider="scripted",
        context_window=1_000,
        created_at=run.created_at,
        usage=Usage(total_tokens=tokens, cost_nano_usd=7),
    )


async def claimed(runs: RunStore, agent: Agent, clock: FrozenClock) -> TurnClaim:
    claim = (await runs.start(None, a_run(agent, clock), "me", reject_busy=False)).claim
    assert isinstance(claim, TurnClaim)
    return claim


async def used(budgets: BudgetStore, period: BudgetPeriod = BudgetPeriod.DAY, org: str = ORG) -> BudgetUsage:
    (budget,) = (await budgets.list(org, None, ALL)).items
    (usage,) = (item for item in budget.usage if item.period is period)
    return usage


class BudgetStoreSuite:
    """Subclass it with fixtures of the stores over one empty database on the `clock` fixture."""

    async def test_budget_is_set_replaced_listed_and_deleted(
        self, budgets: BudgetStore, agents: AgentStore, clock: FrozenClock
    ) -> None:
        ada = await made(agents, an_agent(clock))
        whole = await budgets.set(key("SetBudget"), ORG, DAILY)
        clock.advance(1)
        assert await budgets.set(key("SetBudget"), ORG, DAILY) == whole
        own = await budgets.set(None, ORG, replace(DAILY, agent_id=ada.id))
        assert (await budgets.list(ORG, None, ALL)).items == (whole, own)
        assert (await budgets.list(ORG, ada.id, ALL)).items == (own,)
        hourly = (BudgetLimit(BudgetPeriod.HOUR, max_requests=0),)
        changed = await budgets.set(None, ORG, Budget(limits=hourly))
        assert (changed.id, changed.limits, changed.created_at) == (whole.id, hourly, whole.created_at)
        await budgets.delete(None, OTHER_ORG, own.id)
        assert len((await budgets.list(ORG, None, ALL)).items) == 2
        for _ in range(2):
            await budgets.delete(None, ORG, own.id)
        assert [budget.id for budget in (await budgets.list(ORG, None, ALL)).items] == [whole.id]
        with pytest.raises(RequestIdReused):
            await budgets.set(key("SetBudget", fingerprint="other"), ORG, DAILY)

    async def test_agents_of_others_have_no_budget_here(
        self, budgets: BudgetStore, agents: AgentStore, clock: FrozenClock
    ) -> None:
        theirs = await made(agents, an_agent(clock, organization_id=OTHER_ORG))
        for id_ in (theirs.id, new_id("agent")):
            with pytest.raises(NotFound):
                await budgets.set(None, ORG, replace(DAILY, agent_id=id_))
        await budgets.set(None, OTHER_ORG, DAILY)
        await budgets.count(Payer(OTHER_ORG, theirs.id), Spending(1, 100))
        assert (await budgets.list(ORG, None, ALL)).items == ()
        await budgets.require(Payer(ORG, new_id("agent")))
        with pytest.raises(BudgetExceeded):
            await budgets.require(Payer(OTHER_ORG, theirs.id))

    async def test_budget_goes_with_its_agent(
        self, budgets: BudgetStore, agents: AgentStore, clock: FrozenClock
    ) -> None:
        ada = await made(agents, an_agent(clock))
        await budgets.set(None, ORG, replace(DAILY, agent_id=ada.id))
        await agents.begin_deletion(ORG, ada.id)
        await agents.remove(ada.id)
        assert (await budgets.list(ORG, None, ALL)).items == ()

    async def test_limit_holds_until_its_period_ends(self, budgets: BudgetStore, clock: FrozenClock) -> None:
        payer = Payer(ORG, new_id("agent"))
        await budgets.set(None, ORG, DAILY)
        clock.advance(3_600 * 18)
        await budgets.count(payer, Spending(2, 99, 5))
        await budgets.require(payer)
        await budgets.count(payer, Spending(1, 1))
        with pytest.raises(BudgetExceeded) as refused:
            await budgets.require(payer)
        facts = refused.value.metadata
        assert (facts["period"], facts["limit"], facts["max"], facts["used"]) == ("day", "tokens", "100", "100")
        assert refused.value.retry_after_seconds == 6 * 3_600
        assert await used(budgets) == BudgetUsage(
            BudgetPeriod.DAY,
            datetime(2026, 1, 1, tzinfo=UTC),
            datetime(2026, 1, 2, tzinfo=UTC),
            requests=3,
            tokens=100,
            cost_nano_usd=5,
        )
        clock.advance(6 * 3_600)
        await budgets.require(payer)
        assert (await used(budgets)).tokens == 0
        assert (await used(budgets, BudgetPeriod.MONTH)).tokens == 100

    async def test_usage_of_a_clock_that_was_far_ahead_is_forgotten(
        self, budgets: BudgetStore, clock: FrozenClock
    ) -> None:
        payer, year = Payer(ORG, new_id("agent")), 365 * 86_400
        await budgets.set(None, ORG, DAILY)
        clock.advance(year)
        await budgets.count(payer, Spending(1, 100))
        with pytest.raises(BudgetExceeded):
            await budgets.require(payer)
        clock.advance(-year)
        await budgets.require(payer)
        await budgets.count(payer, Spending(1, 1))
        assert (await used(budgets)).tokens == 1

    async def test_step_counts_once_however_often_it_is_stored(
        self, budgets: BudgetStore, runs: RunStore, agents: AgentStore, clock: FrozenClock
    ) -> None:
        ada = await made(agents, an_agent(clock))
        await budgets.set(None, ORG, Budget(limits=(BudgetLimit(BudgetPeriod.DAY, max_requests=9),)))
        claim = await claimed(runs, ada, clock)
        assert claim.payer == Payer(ORG, ada.id)
        one, two = a_step(claim, 1, 10), replace(a_step(claim, 2, 20), attempts=3)
        for is_repeat in (False, True):
            await runs.write(claim.lease, steps=[one], payer=claim.payer, is_repeat=is_repeat)
        end = replace(an_end(claim.run, clock), last_sequence=0)
        for is_repeat in (False, True):
            await runs.finish(claim.lease, RunEnd(end, steps=(one, two)), (), payer=claim.payer, is_repeat=is_repeat)
        usage = await used(budgets)
        assert (usage.requests, usage.tokens, usage.cost_nano_usd) == (4, 30, 14)

    async def test_run_over_a_budget_is_refused_and_stores_nothing(
        self, budgets: BudgetStore, runs: RunStore, agents: AgentStore, clock: FrozenClock
    ) -> None:
        ada, bob = await made(agents, an_agent(clock)), await made(agents, an_agent(clock, "Bob's"))
        assert (await claimed(runs, bob, clock)).payer is None
        await budgets.set(None, ORG, Budget(agent_id=ada.id, limits=(BudgetLimit(BudgetPeriod.MONTH, max_requests=1),)))
        first = a_run(ada, clock, otid="o-1")
        await runs.start(None, first, "me", reject_busy=False)
        await budgets.count(Payer(ORG, ada.id), Spending(1))
        refused = a_run(ada, clock)
        with pytest.raises(BudgetExceeded) as error:
            await runs.start(None, refused, "me", reject_busy=False)
        assert error.value.metadata["resource_id"] == ada.id
        assert error.value.retry_after_seconds == timedelta(days=31).total_seconds()
        with pytest.raises(NotFound):
            await runs.get(ORG, refused.id)
        assert (await runs.start(None, a_run(ada, clock, otid="o-1"), "me", reject_busy=False)).replayed
        assert not (await runs.start(None, a_run(bob, clock), "me", reject_busy=False)).replayed

    async def test_each_agent_has_the_limits_of_the_organization_until_it_has_its_own(
        self, budgets: BudgetStore, agents: AgentStore, clock: FrozenClock
    ) -> None:
        ada, bob = await made(agents, an_agent(clock)), await made(agents, an_agent(clock, "Bob's"))
        await budgets.set(None, ORG, Budget(agent_limits=(BudgetLimit(BudgetPeriod.DAY, max_requests=2),)))
        for _ in range(2):
            await budgets.require(Payer(ORG, ada.id))
            await budgets.count(Payer(ORG, ada.id), Spending(1))
        with pytest.raises(BudgetExceeded) as refused:
            await budgets.require(Payer(ORG, ada.id))
        assert refused.value.metadata["resource_id"] == ada.id
        await budgets.require(Payer(ORG, bob.id))
        (own,) = (await budgets.list(ORG, ada.id, ALL)).items
        assert (own.limits, own.usage[0].requests) == ((), 2)
        await budgets.set(None, ORG, Budget(agent_id=ada.id, limits=(BudgetLimit(BudgetPeriod.DAY, max_requests=3),)))
        await budgets.require(Payer(ORG, ada.id))
        await budgets.count(Payer(ORG, new_id("agent")), Spending(1))
        assert len((await budgets.list(ORG, None, ALL)).items) == 2

    async def test_runs_beyond_the_limit_wait_or_are_refused(
        self, budgets: BudgetStore, runs: RunStore, leases: LeaseStore, agents: AgentStore, clock: FrozenClock
    ) -> None:
        ada, bob, eve = [await made(agents, an_agent(clock, name)) for name in ("Ada's", "Bob's", "Eve's")]
        await budgets.set(None, ORG, Budget(max_concurrent_runs=2))
        await budgets.set(None, ORG, Budget(agent_id=ada.id, max_concurrent_runs=1))
        first = await claimed(runs, ada, clock)
        second = await claimed(runs, bob, clock)
        with pytest.raises(BudgetExceeded) as refused:
            await runs.start(None, a_run(eve, clock), "me", reject_busy=False)
        assert (refused.value.metadata["limit"], refused.value.retry_after_seconds) == ("concurrent_runs", 1)
        waiting = (await runs.start(None, a_run(eve, clock, background=True), "me", reject_busy=True)).run
        assert waiting.status is RunStatus.CREATED
        assert await runs.claim_next(eve.default_conversation_id, "me") is None
        assert await leases.startable(ORG) == ()
        child = Lineage(second.run.id, RunOrigin.AGENT, (Ancestor(second.run.id, bob.default_conversation_id, bob.id),))
        behind = await runs.start(None, a_run(eve, clock, lineage=child), "me", reject_busy=False)
        assert behind.frees_first
        assert await runs.claim_next(eve.default_conversation_id, "me") is not None
        await runs.finish(first.lease, RunEnd(replace(an_end(first.run, clock), last_sequence=0)), ())

    async def test_place_that_becomes_free_is_taken_by_the_oldest_run_of_an_agent_that_may(
        self, budgets: BudgetStore, runs: RunStore, leases: LeaseStore, agents: AgentStore, clock: FrozenClock
    ) -> None:
        ada, bob, eve = [await made(agents, an_agent(clock, name)) for name in ("Ada's", "Bob's", "Eve's")]
        await budgets.set(None, ORG, Budget(max_concurrent_runs=1))
        await budgets.set(None, ORG, Budget(agent_id=bob.id, max_concurrent_runs=0))
        first = await claimed(runs, ada, clock)
        for agent in (bob, eve):
            clock.advance(1)
            await runs.start(None, a_run(agent, clock, background=True), "me", reject_busy=False)
        await runs.finish(first.lease, RunEnd(replace(an_end(first.run, clock), last_sequence=0)), ())
        assert await leases.startable(ORG) == (eve.default_conversation_id,)
        assert await leases.claimable("me") == (eve.default_conversation_id,)
        (budget,) = (await budgets.list(ORG, bob.id, ALL)).items
        await budgets.delete(None, ORG, budget.id)
        assert await leases.startable(ORG) == (bob.default_conversation_id,)
        assert (await runs.claim_next(bob.default_conversation_id, "me")) is not None
        assert await runs.claim_next(eve.default_conversation_id, "me") is None

    async def test_operators_limit_holds_whatever_the_organization_does(
        self, database: Database, agents: AgentStore, clock: FrozenClock
    ) -> None:
        rules = Budgets(tokens_per_day=50)
        budgets, runs = BudgetStore(database, clock, rules), RunStore(database, clock, budgets=rules)
        ada = await made(agents, an_agent(clock))
        claim = await claimed(runs, ada, clock)
        await runs.write(claim.lease, steps=[a_step(claim, 1, 50)], payer=claim.payer)
        assert (await used(budgets)).tokens == 50
        (budget,) = (await budgets.list(ORG, None, ALL)).items
        await budgets.set(None, ORG, Budget(limits=(BudgetLimit(BudgetPeriod.DAY, max_tokens=1_000),)))
        await budgets.delete(None, ORG, budget.id)
        with pytest.raises(BudgetExceeded, match="50 tokens per day"):
            await runs.start(None, a_run(ada, clock), "me", reject_busy=False)
        await budgets.require(Payer(OTHER_ORG, ada.id))
