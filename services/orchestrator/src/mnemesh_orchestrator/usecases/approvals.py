"""Answering approvals, withdrawing them, and denying those that nobody answers in time."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from datetime import timedelta

from mnemesh_kit.clock import Clock
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.principal import Principal, as_principal
from mnemesh_types.messages import Deny

from mnemesh_orchestrator.errors import ApprovalMismatch, NoPendingApproval
from mnemesh_orchestrator.model.approvals import Approval, ApprovalAnswer, ApprovalFilter
from mnemesh_orchestrator.model.events import RunEvent
from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.model.run_config import RunConfig
from mnemesh_orchestrator.model.runs import CancelOutcome, Run, RunFilter
from mnemesh_orchestrator.runs.worker import RunWorker
from mnemesh_orchestrator.store.base import ApprovalStore
from mnemesh_orchestrator.usecases.reconciliation import each
from mnemesh_orchestrator.usecases.runs import RunService

_TIMED_OUT = "Nobody answered in time."


class ApprovalService:
    """Approvals that agents wait for."""

    def __init__(
        self,
        store: ApprovalStore,
        runs: RunService,
        worker: RunWorker,
        clock: Clock,
        timeout_seconds: float = 0,
    ) -> None:
        """`timeout_seconds`: how long an approval waits before it is denied; 0 is for ever."""
        self._store = store
        self._runs = runs
        self._worker = worker
        self._clock = clock
        self._timeout = timedelta(seconds=timeout_seconds)

    async def answer(
        self,
        caller: Principal,
        key: RequestKey | None,
        agent_id: str,
        conversation_id: str,
        answer: ApprovalAnswer,
        messages: Sequence[InputMessage],
    ) -> tuple[Run, AsyncGenerator[RunEvent, None]]:
        """Decides a pending approval by a run of its own; the run, and its events to the end.

        Further messages are said once the tools have run. A repeat under the same key, and the same decisions again,
        are the first run again.

        Raises:
            NotFound: no such agent, or conversation of it.
            NoPendingApproval: nothing waits for an answer, or it was decided otherwise.
            ApprovalMismatch: the decisions are not exactly about the calls that wait; nothing is changed.
            ModelUnknown: the config names a model that nobody serves.
        """
        config = answer.config or RunConfig()
        run = self._runs.new_run(caller, agent_id, conversation_id, messages, config, background=False)
        return await self._runs.opened(caller, key, run, answer)

    async def cancel(self, caller: Principal, where: RunFilter, run_ids: Sequence[str]) -> dict[str, CancelOutcome]:
        """Cancels runs as RunService does, and withdraws the approvals that those which stopped for one wait for."""
        outcomes = await self._runs.cancel(caller, where, run_ids)
        waiting = await self._store.pending(
            ApprovalFilter(caller.organization_id, where.agent_ids, tuple(run_ids), where.conversation_id)
        )
        for approval in waiting:
            if await self._withdrawn(caller, approval):
                outcomes[approval.run_id] = CancelOutcome.CANCELLED
        return outcomes

    async def _withdrawn(self, caller: Principal, approval: Approval) -> bool:
        """Ends the wait for an approval: each of its calls gets a return; False where somebody decided it before."""
        given = replace(_denial(approval, None), withdrawn=True)
        try:
            run = await self._decide(caller, approval, given)
        except (NoPendingApproval, ApprovalMismatch):
            return False
        await self._worker.ended(run.id)
        return run.resumes is not None and run.resumes.withdrawn

    async def _decide(self, caller: Principal, approval: Approval, answer: ApprovalAnswer) -> Run:
        run = self._runs.new_run(
            caller, approval.agent_id, approval.conversation_id, (), approval.config, background=True
        )
        started = await self._worker.start(None, run, reject_busy=False, answer=answer)
        return started.run

    async def expire(self) -> None:
        """Denies every approval that waits for longer than it may; the agent is told and goes on."""
        if self._timeout:
            # One that is not denied was decided at the same moment, or its agent is gone.
            await each("approvals", self._late, self._expired, lambda approval: approval.id)

    async def _late(self) -> Sequence[Approval]:
        return await self._store.pending(ApprovalFilter(asked_before=self._clock.now() - self._timeout))

    async def _expired(self, approval: Approval) -> None:
        caller = Principal(approval.organization_id, approval.subject_id)
        with as_principal(caller):
            await self._decide(caller, approval, _denial(approval, _TIMED_OUT))


def _denial(approval: Approval, reason: str | None) -> ApprovalAnswer:
    return ApprovalAnswer(tuple(Deny(item.call.id, reason) for item in approval.asked.gated), approval.id)
