"""The contract of what stores steps."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_orchestrator.model.steps import Step, StepFilter, StepTrace


class StepStore(Protocol):
    """Steps that are over. Runs write them; see RunStore."""

    async def get(self, organization_id: str, step_id: str) -> Step:
        """A finished step.

        Raises:
            NotFound
        """
        ...

    async def list(self, organization_id: str, where: StepFilter, page: PageQuery) -> Page[Step]:
        """A page by creation."""
        ...

    async def trace(self, organization_id: str, step_id: str) -> StepTrace:
        """What went to the model and came back.

        Raises:
            NotFound: the step is not there, or no trace of it is kept any more.
        """
        ...

    async def set_feedback(
        self, key: RequestKey | None, organization_id: str, step_id: str, feedback: str | None, tags: Sequence[str]
    ) -> Step:
        """Sets a person's verdict and tags, or clears them.

        Raises:
            NotFound
        """
        ...

    async def purge_traces(self, before: datetime) -> int:
        """Forgets traces written before then; how many."""
        ...
