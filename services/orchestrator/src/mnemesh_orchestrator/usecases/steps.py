"""Steps that are over: what they cost, what went to the model, and what people think of them."""

from collections.abc import Sequence

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.principal import Principal

from mnemesh_orchestrator.model.steps import Step, StepFilter, StepTrace
from mnemesh_orchestrator.store.base import StepStore


class StepService:
    """The steps of an organization's runs."""

    def __init__(self, store: StepStore) -> None:
        self._store = store

    async def get(self, caller: Principal, step_id: str) -> Step:
        """A step, or NotFound."""
        return await self._store.get(caller.organization_id, step_id)

    async def list(self, caller: Principal, where: StepFilter, page: PageQuery) -> Page[Step]:
        """A page of steps by creation."""
        return await self._store.list(caller.organization_id, where, page)

    async def trace(self, caller: Principal, step_id: str) -> StepTrace:
        """The request to the model and its answer, or NotFound."""
        return await self._store.trace(caller.organization_id, step_id)

    async def judge(
        self, caller: Principal, key: RequestKey | None, step_id: str, feedback: str | None, tags: Sequence[str]
    ) -> Step:
        """Sets or clears a verdict on a step, or NotFound."""
        return await self._store.judge(key, caller.organization_id, step_id, feedback, tags)
