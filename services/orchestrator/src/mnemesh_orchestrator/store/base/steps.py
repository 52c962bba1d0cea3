"""The store of steps."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_orchestrator.model.steps import Step, StepFilter, StepTrace


class StepStore(Protocol):
    """Ended steps. RunStore writes them.

    Example:
        >>> (await steps.get(organization_id, step_id)).status
        <StepStatus.SUCCESS: 'success'>
    """

    async def get(self, organization_id: str, step_id: str) -> Step:
        """Returns an ended step. Raises NotFound."""
        ...

    async def list(self, organization_id: str, filter_: StepFilter, page: PageQuery) -> Page[Step]:
        """Returns a page of steps ordered by creation."""
        ...

    async def trace(self, organization_id: str, step_id: str) -> StepTrace:
        """Returns the request to the model at a step and its response.

        Raises:
            NotFound: The step does not exist, or its trace was deleted.
        """
        ...

    async def set_feedback(
        self, key: RequestKey | None, organization_id: str, step_id: str, feedback: str | None, tags: Sequence[str]
    ) -> Step:
        """Replaces the feedback and the tags of a step, and returns the step. Raises NotFound, RequestIdReused."""
        ...

    async def purge_traces(self, before: datetime) -> int:
        """Deletes the traces that were written before a time. Returns their number."""
        ...
