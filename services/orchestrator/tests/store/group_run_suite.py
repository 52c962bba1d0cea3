"""The suite of the runs of groups in the store: their queue, their claims, and the approvals that they wait for."""

from dataclasses import replace
from datetime import timedelta

import pytest
import pytest_asyncio
from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.errors import ConversationBusy
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.events import (
    Claim,
    EndedTurn,
    EntryKind,
    GroupClaim,
    JournalEntry,
    RunEnd,
    RunEvent,
    retried_plan,
)
from mnemesh_orchestrator.model.groups import Group, GroupPlan, GroupState, ManagerConfig, MemberTurn, Speaker
from mnemesh_orchestrator.model.runs import (
    Ancestor,
    Lineage,
    MemberApproval,
    Run,
    RunFilter,
    RunOrigin,
    RunStatus,
    StopReason,
)
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.groups import GroupStore
from mnemesh_orchestrator.store.leases import LeaseStore
from mnemesh_orchestrator.store.run_relations import RunRetention
from mnemesh_orchestrator.store.runs import RunStore
from mnemesh_orchestrator.store.tables import groups as groups_table

from .approval_suite import approving, asked_by
from .records import ORG, OTHER_ORG, a_run, an_agent, an_end, an_event, made

ALL = PageQuery(50, ascending=True)


def of_group(group: Group, agent: Agent, clock: FrozenClock) -> Run:
    """Returns a run of a group with one member."""
    plan = GroupPlan(group.id, ManagerConfig(), (Speaker(agent.id, agent.name, "Kind."),))
    run = a_run(agent, clock, conversation_id=group.conversation_id, group_id=group.id, plan=plan)
    return replace(run, agent_id="")


def turn_of(parent: Run, agent: Agent, clock: FrozenClock) -> Run:
    """Returns the run of a member's turn."""
    waiting = Ancestor(parent.id, parent.conversation_id, "")
    lineage = Lineage(parent.id, RunOrigin.GROUP, (waiting,), 1)
    return replace(a_run(agent, clock), group_id=parent.group_id, lineage=lineage)


class GroupRunStoreSuite:
    """Subclass it with fixtures `agents`, `groups`, `runs` and `leases` over one empty database."""

    @pytest_asyncio.fixture
    async def agent(self, agents: AgentStore, clock: FrozenClock) -> Agent:
        return await made(agents, an_agent(clock))

    @pytest_asyncio.fixture
    async def group(self, groups: GroupStore, agent: Agent, clock: FrozenClock) -> Group:
        now = clock.now()
        stored, _ = await groups.create(None, Group(new_id("group"), ORG, now, now, agent_ids=(agent.id,)))
        return stored

    @pytest_asyncio.fixture
    async def claim(self, runs: RunStore, group: Group, agent: Agent, clock: FrozenClock) -> Claim:
        started = await runs.start(None, of_group(group, agent, clock), "me", reject_busy=False)
        assert started.claim is not None
        return started.claim

    async def test_runs_of_a_group_are_claimed_in_order(
        self, runs: RunStore, leases: LeaseStore, group: Group, agent: Agent, clock: FrozenClock, claim: Claim
    ) -> None:
        assert isinstance(claim, GroupClaim)
        assert (claim.plan, claim.run.agent_id, claim.lease.conversation_id) == (
            claim.run.plan,
            "",
            group.conversation_id,
        )
        assert await runs.get(ORG, claim.run.id) == claim.run
        second = await runs.start(None, of_group(group, agent, clock), "you", reject_busy=False)
        assert (second.run.status, second.claim) == (RunStatus.CREATED, None)
        with pytest.raises(ConversationBusy):
            await runs.start(None, of_group(group, agent, clock), "you", reject_busy=True)
        with pytest.raises(ConversationBusy):
            await leases.acquire(ORG, "", group.conversation_id, new_id("run"), "you")
        finished = await runs.finish(claim.lease, RunEnd(an_end(claim.run, clock)), ())
        assert finished.has_next
        assert await leases.claimable("you") == (group.conversation_id,)
        following = await runs.claim_next(group.conversation_id, "you")
        assert isinstance(following, GroupClaim)
        assert (following.run.id, following.lease.epoch) == (second.run.id, claim.lease.epoch + 1)

    async def test_queue_of_another_organization_is_not_found(
        self, runs: RunStore, leases: LeaseStore, group: Group, agent: Agent, clock: FrozenClock
    ) -> None:
        run = replace(of_group(group, agent, clock), organization_id=OTHER_ORG)
        with pytest.raises(NotFound) as raised:
            await runs.start(None, run, "me", reject_busy=False)
        assert raised.value.metadata["resource_id"] == group.id
        with pytest.raises(NotFound):
            await leases.acquire(OTHER_ORG, "", group.conversation_id, new_id("run"), "me")

    async def test_run_of_a_group_that_is_being_deleted_is_claimed_to_be_cancelled(
        self, database: Database, runs: RunStore, group: Group, agent: Agent, clock: FrozenClock, claim: Claim
    ) -> None:
        deleting = groups_table.update().where(groups_table.c.id == group.id).values(state=GroupState.DELETING)
        await database.write(lambda conn: conn.execute(deleting))
        resumed = await runs.claim_next(group.conversation_id, "me")
        assert resumed is not None
        assert (claim.cancelled, resumed.cancelled, resumed.resumed) == (False, True, True)
        with pytest.raises(NotFound):
            await runs.start(None, of_group(group, agent, clock), "me", reject_busy=False)

    async def test_events_of_a_turn_are_progress_and_its_approval_is_no_stall(
        self, runs: RunStore, group: Group, agent: Agent, clock: FrozenClock, claim: Claim
    ) -> None:
        async def stalled() -> int:
            found = await runs.claim_next(group.conversation_id, "me")
            assert found is not None
            return found.stalled

        assert [await stalled(), await stalled()] == [1, 2]
        turn = (await runs.start(None, turn_of(claim.run, agent, clock), "me", reject_busy=False)).claim
        assert turn is not None
        await runs.write(turn.lease, events=[an_event(turn.run, 1, clock)])
        assert [await stalled(), await stalled()] == [0, 1]
        approval = asked_by(turn, clock)
        asked = an_end(turn.run, clock, StopReason.REQUIRES_APPROVAL)
        await runs.finish(turn.lease, RunEnd(asked, approval=approval), ())
        assert [await stalled(), await stalled()] == [0, 0]
        waiting = (MemberApproval(agent.id, turn.run.id, approval.id),)
        assert (await runs.get(ORG, claim.run.id)).waiting_for == waiting
        page = await runs.list(ORG, RunFilter(group_id=group.id), ALL)
        assert [run.waiting_for for run in page.items] == [waiting, ()]
        answer = approving("call_b", request=approval.id)
        answering = await runs.start(None, a_run(agent, clock), "me", reject_busy=False, answer=answer)
        assert (answering.run.lineage, answering.run.group_id) == (turn.run.lineage, group.id)
        assert (await runs.get(ORG, claim.run.id)).waiting_for == ()

    async def test_turn_that_waits_behind_the_approval_of_another_run_names_it(
        self, runs: RunStore, agent: Agent, clock: FrozenClock, claim: Claim
    ) -> None:
        asking = (await runs.start(None, a_run(agent, clock), "me", reject_busy=False)).claim
        assert asking is not None
        turn = await runs.start(None, turn_of(claim.run, agent, clock), "me", reject_busy=False)
        assert turn.claim is None
        approval = asked_by(asking, clock)
        ended = an_end(asking.run, clock, StopReason.REQUIRES_APPROVAL)
        await runs.finish(asking.lease, RunEnd(ended, approval=approval), ())
        expected = (MemberApproval(agent.id, asking.run.id, approval.id),)
        assert (await runs.get(ORG, claim.run.id)).waiting_for == expected

    @pytest.mark.parametrize("completed", [True, False])
    async def test_turns_of_a_run_that_did_not_complete_are_kept(
        self, runs: RunStore, clock: FrozenClock, claim: Claim, completed: bool
    ) -> None:
        turn = MemberTurn(1, new_id("agent"), words=("Hello.",))
        ended = EndedTurn(turn, StopReason.END_TURN)
        entry = JournalEntry(new_id("run"), EntryKind.TURN, clock.now(), ordinal=1, turn=ended)
        await runs.write(claim.lease, entries=[entry])
        end = an_end(claim.run, clock)
        if not completed:
            end = replace(end, status=RunStatus.CANCELLED, stop_reason=StopReason.CANCELLED)
        await runs.finish(claim.lease, RunEnd(end), ())
        kept = await runs.journal(claim.run.id)
        assert kept == (() if completed else (entry,))
        assert retried_plan(claim.run.plan, kept).completed == (() if completed else (turn,))

    async def test_events_whose_write_is_repeated_are_stored_once(
        self, runs: RunStore, clock: FrozenClock, claim: Claim
    ) -> None:
        events: list[RunEvent] = [an_event(claim.run, number, clock) for number in (1, 2)]
        for is_repeat in (False, True):
            await runs.write(claim.lease, events=events, is_repeat=is_repeat)
        assert await runs.events(claim.run.id, 0, 9) == tuple(events)

    async def test_deletion_of_a_run_keeps_its_turns(
        self, runs: RunStore, agent: Agent, clock: FrozenClock, claim: Claim
    ) -> None:
        turn = await runs.start(None, turn_of(claim.run, agent, clock), "me", reject_busy=False)
        await runs.finish(claim.lease, RunEnd(an_end(claim.run, clock)), ())
        await runs.delete(ORG, claim.run.id)
        assert (await runs.get(ORG, turn.run.id)).lineage.parent_run_id == claim.run.id

    async def test_old_runs_are_purged_with_their_turns(
        self, runs: RunStore, retention: RunRetention, agent: Agent, clock: FrozenClock, claim: Claim
    ) -> None:
        turn = (await runs.start(None, turn_of(claim.run, agent, clock), "me", reject_busy=False)).claim
        assert turn is not None
        await runs.finish(turn.lease, RunEnd(an_end(turn.run, clock)), ())
        assert await retention.purge_runs(clock.now() + timedelta(days=1)) == 1
        assert (await runs.get(ORG, claim.run.id)).status is RunStatus.RUNNING
        await runs.finish(claim.lease, RunEnd(an_end(claim.run, clock)), ())
        assert await retention.purge_runs(clock.now() + timedelta(days=1)) == 1
