"""The store of approvals."""

from typing import Protocol

from mnemesh_orchestrator.model.approvals import Approval, ApprovalFilter


class ApprovalStore(Protocol):
    """Pending approvals. RunStore creates and decides them, in the transactions of the runs.

    Example:
        >>> [approval.id for approval in await approvals.pending(ApprovalFilter(organization_id))]
        ['message-…']
    """

    async def pending(self, filter_: ApprovalFilter) -> tuple[Approval, ...]:
        """Returns the pending approvals of ACTIVE conversations of ACTIVE agents, oldest first."""
        ...

    async def withdraw(self, approval_id: str) -> None:
        """Withdraws a pending approval, so that it cannot be answered. Has no effect on a decided one."""
        ...
