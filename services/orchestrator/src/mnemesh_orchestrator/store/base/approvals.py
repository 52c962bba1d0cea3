"""The contract of what stores requests for approval."""

from typing import Protocol

from mnemesh_orchestrator.model.approvals import Approval, ApprovalFilter


class ApprovalStore(Protocol):
    """Requests for approval that wait. They are made and decided by RunStore, with the runs that do so."""

    async def pending(self, where: ApprovalFilter) -> tuple[Approval, ...]:
        """The pending ones of ACTIVE conversations of ACTIVE agents, the oldest first."""
        ...

    async def withdraw(self, approval_id: str) -> None:
        """Takes a pending one back: nobody can answer it any more. One that is not pending stays as it is."""
        ...
