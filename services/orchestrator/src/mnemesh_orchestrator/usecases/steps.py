"""Steps that have ended: their records, their traces, and the feedback of people."""

from collections.abc import Sequence

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.principal import Principal

from mnemesh_orchestrator.model.steps import (
    Step,
    StepFilter,
    StepTrace,
    require_feedback,
    require_valid_step_filter,
    valid_step_tags,
)
from mnemesh_orchestrator.store.base import StepStore


class StepService:
    """The steps of an organization's runs."""

    def __init__(self, store: StepStore) -> None:
        self._store = store

    async def get(self, caller: Principal, step_id: str) -> Step:
        """Returns a step. Raises NotFound."""
        return await self._store.get(caller.organization_id, step_id)

    async def list(self, caller: Principal, filter_: StepFilter, page: PageQuery) -> Page[Step]:
        """Returns a page of steps ordered by creation. Raises InvalidArgument if the filter breaks a rule."""
        return await self._store.list(caller.organization_id, require_valid_step_filter(filter_), page)

    async def trace(self, caller: Principal, step_id: str) -> StepTrace:
        """Returns the request to the model at a step and its response.

        Raises:
            NotFound: The step does not exist, or its trace was deleted.
        """
        return await self._store.trace(caller.organization_id, step_id)

    async def set_feedback(
        self, caller: Principal, key: RequestKey | None, step_id: str, feedback: str | None, tags: Sequence[str]
    ) -> Step:
        """Replaces the feedback and the tags of a step, and returns the step.

        Raises:
            InvalidArgument: The feedback or a tag breaks its rule.
            NotFound: The step does not exist.
        """
        require_feedback(feedback)
        return await self._store.set_feedback(key, caller.organization_id, step_id, feedback, valid_step_tags(tags))
