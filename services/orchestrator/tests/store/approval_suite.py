"""The suite of approval stores: one row each, decided once, and no other run starts while one is pending."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from mnemesh_kit.ids import new_id
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.errors import ApprovalMismatch, NoPendingApproval, PendingApproval
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.conversations import Approval, ApprovalAnswer, ApprovalFilter, AskedStep, PlannedCall
from mnemesh_orchestrator.model.events import Claim, EntryKind, JournalEntry, RunEnd, UnfinishedDecision
from mnemesh_orchestrator.model.inputs import RunConfig
from mnemesh_orchestrator.model.runs import RunStatus, StopReason
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.approvals import ApprovalStore
from mnemesh_orchestrator.store.runs import RunStore
from mnemesh_types.messages import Approve, Deny, Message, Role, ToolCall

from .records import ORG, OTHER_ORG, a_run, an_agent

ME, OTHER = "instance-1", "instance-2"


def asked_by(claim: Claim, clock: FrozenClock) -> Approval:
    """Returns an approval of two calls, one of which waits."""
    run, step = claim.run, new_id("step")
    calls = (ToolCall("call_a", "look", "{}"), ToolCall("call_b", "dig", '{"deep": 1}'))
    message = Message(new_id("message"), Role.ASSISTANT, clock.now(), tool_calls=calls, step_id=step)
    planned = (PlannedCall(0, calls[0], {}), PlannedCall(1, calls[1], {"deep": 1}, gated=True))
    request = AskedStep(step, message, planned, ("look",), "seen", (), {"human": 3})
    return Approval(
        new_id("message"), ORG, "user-1", run.agent_id, run.conversation_id, run.id, clock.now(), run.config, request
    )


def approving(*call_ids: str, request: str | None = None) -> ApprovalAnswer:
    return ApprovalAnswer(tuple(Approve(id_) for id_ in call_ids), request)


class ApprovalStoreSuite:
    async def paused(self, agents: AgentStore, runs: RunStore, clock: FrozenClock) -> tuple[Agent, Approval]:
        """Returns an agent whose first run stopped for an approval."""
        agent = an_agent(clock)
        await agents.begin_creation(None, agent, b"")
        await agents.activate(agent)
        config = RunConfig(max_steps=4)
        started = await runs.start(None, replace(a_run(agent, clock), config=config), ME, reject_busy=False)
        assert started.claim is not None
        approval = asked_by(started.claim, clock)
        ended = replace(
            started.claim.run,
            status=RunStatus.COMPLETED,
            stop_reason=StopReason.REQUIRES_APPROVAL,
            completed_at=clock.now(),
        )
        await runs.finish(started.claim.lease, RunEnd(ended, approval=approval), ())
        return agent, approval

    async def test_pending_approval_is_found_unchanged(
        self, agents: AgentStore, runs: RunStore, approvals: ApprovalStore, clock: FrozenClock
    ) -> None:
        agent, approval = await self.paused(agents, runs, clock)
        assert await approvals.list_pending(ApprovalFilter()) == (approval,)
        for where in (
            ApprovalFilter(ORG),
            ApprovalFilter(agent_ids=(agent.id,)),
            ApprovalFilter(run_ids=(approval.run_id,)),
            ApprovalFilter(conversation_id=approval.conversation_id),
            ApprovalFilter(expired_at=clock.now(), asked_before=clock.now()),
        ):
            assert await approvals.list_pending(where) == (approval,)
        early = clock.now() - timedelta(seconds=1)
        for where in (
            ApprovalFilter(OTHER_ORG),
            ApprovalFilter(run_ids=("run-x",)),
            ApprovalFilter(expired_at=clock.now(), asked_before=early),
            ApprovalFilter(expired_at=clock.now()),
        ):
            assert await approvals.list_pending(where) == ()

    async def test_no_run_starts_while_an_approval_is_pending(
        self, agents: AgentStore, runs: RunStore, clock: FrozenClock
    ) -> None:
        agent, approval = await self.paused(agents, runs, clock)
        with pytest.raises(PendingApproval) as raised:
            await runs.start(None, a_run(agent, clock), ME, reject_busy=False)
        assert raised.value.metadata == {"approval_request_id": approval.id}
        assert await runs.claim_next(approval.conversation_id, ME) is None

    async def test_one_of_many_concurrent_decisions_wins(
        self, agents: AgentStore, runs: RunStore, approvals: ApprovalStore, clock: FrozenClock
    ) -> None:
        agent, approval = await self.paused(agents, runs, clock)
        denials = [ApprovalAnswer((Deny("call_b", str(number)),), approval.id) for number in range(5)]
        came = await asyncio.gather(
            *(
                runs.start(None, a_run(agent, clock), instance_id, reject_busy=False, answer=answer)
                for answer, instance_id in zip((*denials, approving("call_b")), (ME, OTHER) * 3, strict=True)
            ),
            return_exceptions=True,
        )
        won = [item for item in came if not isinstance(item, BaseException)]
        assert len(won) == 1
        assert won[0].claim is not None
        assert all(isinstance(item, NoPendingApproval) for item in came if isinstance(item, BaseException))
        resumes = won[0].run.resumes
        assert resumes is not None
        assert (resumes.request_id, resumes.asked) == (approval.id, approval.asked)
        assert won[0].run.config == approval.config
        assert await approvals.list_pending(ApprovalFilter()) == ()
        assert (await runs.get(ORG, won[0].run.id)).resumes == resumes

    async def test_repeated_decisions_return_the_same_run(
        self, agents: AgentStore, runs: RunStore, clock: FrozenClock
    ) -> None:
        agent, approval = await self.paused(agents, runs, clock)
        first = await runs.start(None, a_run(agent, clock), ME, reject_busy=False, answer=approving("call_b"))
        for answer in (approving("call_b"), approving("call_b", request=approval.id)):
            again = await runs.start(None, a_run(agent, clock), OTHER, reject_busy=True, answer=answer)
            assert (again.replayed, again.run.id, again.claim) == (True, first.run.id, None)

    async def test_invalid_decisions_change_nothing(
        self, agents: AgentStore, runs: RunStore, approvals: ApprovalStore, clock: FrozenClock
    ) -> None:
        agent, approval = await self.paused(agents, runs, clock)
        for answer, kind in (
            (approving("call_a"), ApprovalMismatch),
            (approving("call_a", "call_b"), ApprovalMismatch),
            (approving("call_b", request=new_id("message")), NoPendingApproval),
        ):
            with pytest.raises(kind):
                await runs.start(None, a_run(agent, clock), ME, reject_busy=False, answer=answer)
        assert await approvals.list_pending(ApprovalFilter()) == (approval,)

    async def test_unfinished_decision_is_kept_with_its_journal(
        self, agents: AgentStore, runs: RunStore, clock: FrozenClock
    ) -> None:
        agent, approval = await self.paused(agents, runs, clock)
        place, step = (approval.conversation_id, approval.id), approval.asked.step_id
        assert await runs.find_unfinished_decision(*place) is None
        first = await runs.start(None, a_run(agent, clock), ME, reject_busy=False, answer=approving("call_b"))
        assert first.claim is not None
        resumed = first.run.resumes
        assert resumed is not None
        begun = JournalEntry(step, EntryKind.STARTED, clock.now(), 1)
        later = JournalEntry(new_id("step"), EntryKind.STARTED, clock.now())
        await runs.write(first.claim.lease, entries=[begun, later])
        failed: dict[str, Any] = {
            "status": RunStatus.FAILED,
            "stop_reason": StopReason.ERROR,
            "completed_at": clock.now(),
        }
        await runs.finish(first.claim.lease, RunEnd(replace(first.run, **failed)), ())
        assert await runs.find_unfinished_decision(*place) == UnfinishedDecision(resumed, (begun,))
        assert await runs.find_unfinished_decision(approval.conversation_id, new_id("message")) is None
        assert await runs.find_unfinished_decision("conv-x", approval.id) is None
        assert await runs.journal(first.run.id) == (begun,)
        # Whoever takes it over notes what it came to; once it is done, nothing is kept.
        second = await runs.start(None, a_run(agent, clock), ME, reject_busy=False)
        assert second.claim is not None
        result = replace(begun, kind=EntryKind.RESULT)
        await runs.write(second.claim.lease, entries=[result])
        undone = await runs.find_unfinished_decision(*place)
        assert undone is not None
        assert sorted(entry.kind for entry in undone.entries) == [EntryKind.RESULT, EntryKind.STARTED]
        done: dict[str, Any] = {
            "status": RunStatus.COMPLETED,
            "stop_reason": StopReason.END_TURN,
            "completed_at": clock.now(),
        }
        await runs.finish(second.claim.lease, RunEnd(replace(second.run, resumes=first.run.resumes, **done)), ())
        assert await runs.find_unfinished_decision(*place) == UnfinishedDecision(resumed, ())

    async def test_withdrawn_approval_cannot_be_answered(
        self, agents: AgentStore, runs: RunStore, approvals: ApprovalStore, clock: FrozenClock
    ) -> None:
        agent, approval = await self.paused(agents, runs, clock)
        await approvals.withdraw(approval.id)
        await approvals.withdraw(approval.id)
        assert await approvals.list_pending(ApprovalFilter()) == ()
        with pytest.raises(NoPendingApproval, match="withdrawn"):
            await runs.start(None, a_run(agent, clock), ME, reject_busy=False, answer=approving("call_b"))
        assert (await runs.start(None, a_run(agent, clock), ME, reject_busy=False)).claim is not None

    async def test_approval_is_deleted_with_its_agent(
        self, agents: AgentStore, runs: RunStore, approvals: ApprovalStore, clock: FrozenClock
    ) -> None:
        agent, _ = await self.paused(agents, runs, clock)
        await agents.begin_deletion(ORG, agent.id)
        assert await approvals.list_pending(ApprovalFilter()) == ()
        await agents.remove(agent.id)
