"""Answers approvals, withdraws them, and denies those that expire."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from datetime import timedelta

from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.time import Clock
from mnemesh_types.messages import Deny

from mnemesh_orchestrator.errors import ApprovalMismatch, NoPendingApproval
from mnemesh_orchestrator.model.conversations import Approval, ApprovalAnswer, ApprovalFilter, require_valid_answer
from mnemesh_orchestrator.model.events import RunEvent
from mnemesh_orchestrator.model.inputs import InputMessage, RunConfig, require_valid_inputs, valid_config
from mnemesh_orchestrator.model.runs import CancelOutcome, Run, RunFilter, RunRequest
from mnemesh_orchestrator.runs.worker import RunWorker
from mnemesh_orchestrator.store.approvals import ApprovalStore
from mnemesh_orchestrator.usecases.runs import RunService
from mnemesh_orchestrator.usecases.sagas import reconcile

_TIMED_OUT = "Nobody answered in time."  # stored, and shown to the model


class ApprovalService:
    """The approvals that agents wait for."""

    def __init__(
        self,
        store: ApprovalStore,
        runs: RunService,
        worker: RunWorker,
        clock: Clock,
        timeout_seconds: float = 0,
    ) -> None:
        """`timeout_seconds` is the time after which an approval is denied; 0 is never."""
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
    ) -> tuple[Run, AsyncGenerator[Sequence[RunEvent], None]]:
        """Decides a pending approval with a new run. Returns the run and its events until it ends.

        The messages follow the tool returns. A repeat under the same key, or with the same decisions, returns the first
        run.

        Raises:
            NoPendingApproval: No approval is pending, or it was decided differently.
            ApprovalMismatch: The decisions do not match the pending calls. Nothing is changed.
            ModelUnknown: No provider serves the model of the config.
        """
        answer = require_valid_answer(answer)
        messages = require_valid_inputs(messages)
        if answer.config is not None:
            answer = replace(answer, config=valid_config(answer.config))
        config = answer.config or RunConfig()
        run = self._runs.new_run(caller, RunRequest(agent_id, conversation_id, messages, config), background=False)
        return await self._runs.open(caller, key, run, answer)

    async def cancel(self, caller: Principal, filter_: RunFilter, run_ids: Sequence[str]) -> dict[str, CancelOutcome]:
        """Cancels runs and withdraws the approvals that they wait for. Returns the outcomes by run."""
        outcomes = await self._runs.cancel(caller, filter_, run_ids)
        pending = await self._store.list_pending(
            ApprovalFilter(
                caller.organization_id, filter_.agent_ids, tuple(run_ids), filter_.conversation_id, filter_.group_id
            )
        )
        for approval in pending:
            if await self._withdraw(caller, approval):
                outcomes[approval.run_id] = CancelOutcome.CANCELLED
        return outcomes

    async def _withdraw(self, caller: Principal, approval: Approval) -> bool:
        """Denies all calls of an approval. Returns False if it was decided before."""
        denial = replace(_denial(approval, None), withdrawn=True)
        try:
            run = await self._decide(caller, approval, denial)
        except (NoPendingApproval, ApprovalMismatch):
            return False
        await self._worker.wait_for_end(run.id)
        return run.resumes is not None and run.resumes.withdrawn

    async def _decide(self, caller: Principal, approval: Approval, answer: ApprovalAnswer) -> Run:
        request = RunRequest(approval.agent_id, approval.conversation_id, (), approval.config)
        run = self._runs.new_run(caller, request, background=True)
        started = await self._worker.start(None, run, reject_busy=False, answer=answer)
        return started.run

    async def expire(self) -> None:
        """Denies the approvals that have expired. Their agents continue."""
        # An error means that the approval was decided at the same time, or that its agent was deleted.
        await reconcile("approvals", self._list_expired, self._deny_expired, lambda approval: approval.id)

    async def _list_expired(self) -> Sequence[Approval]:
        now = self._clock.now()
        asked_before = now - self._timeout if self._timeout else None
        return await self._store.list_pending(ApprovalFilter(expired_at=now, asked_before=asked_before))

    async def _deny_expired(self, approval: Approval) -> None:
        caller = Principal(approval.organization_id, approval.subject_id)
        with as_principal(caller):
            await self._decide(caller, approval, _denial(approval, _TIMED_OUT))


def _denial(approval: Approval, reason: str | None) -> ApprovalAnswer:
    return ApprovalAnswer(tuple(Deny(item.call.id, reason) for item in approval.asked.gated), approval.id)
