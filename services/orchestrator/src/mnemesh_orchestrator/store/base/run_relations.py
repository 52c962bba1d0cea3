"""The relations between runs: those that a run started, and those that wait for one another."""

from typing import Protocol

from mnemesh_orchestrator.model.runs import ChildRun, Continuation, MemberApproval, Run


class RunRelationStore(Protocol):
    """Reads of the runs that belong to a run.

    Example:
        >>> [child.id for child in await relations.children(parent.organization_id, parent.id)]
        ['run-…']
    """

    async def children(self, organization_id: str, run_id: str) -> tuple[ChildRun, ...]:
        """Returns the runs that a run started, in the order of their creation."""
        ...

    async def approvals_awaited(self, run_id: str) -> tuple[MemberApproval, ...]:
        """Returns the pending approvals of the runs that a run started and waits for, directly or through others."""
        ...

    async def continuation(self, run: Run) -> Continuation:
        """Returns what became of the approval for which a run stopped."""
        ...

    async def must_give_up(self, parent: Run, child_id: str) -> bool:
        """Returns whether `parent` has to stop waiting for a run that has not begun.

        It does if the child waits in its queue behind a run that waits, itself or through other runs, for `parent` or
        one of its ancestors. Of the runs of such a cycle that wait for a queued run, only the one that was created last
        gives up. All of them find the same one.
        """
        ...
