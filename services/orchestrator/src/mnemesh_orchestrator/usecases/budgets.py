"""Budgets of organizations and agents."""

from dataclasses import dataclass

from mnemesh_kit.call_context import Principal
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_types.agents import Budget

from mnemesh_orchestrator.model.budgets import require_valid_budget
from mnemesh_orchestrator.runs.worker import RunWorker
from mnemesh_orchestrator.store.budgets import BudgetStore


@dataclass(frozen=True, eq=False)
class BudgetService:
    """Sets, lists and deletes budgets. The loop checks and counts them."""

    store: BudgetStore
    worker: RunWorker

    async def set(self, caller: Principal, key: RequestKey | None, budget: Budget) -> Budget:
        """Creates a budget or replaces its limits, and returns it. Raises InvalidArgument, NotFound.

        Runs that have a place now begin.
        """
        stored = await self.store.set(key, caller.organization_id, require_valid_budget(budget))
        await self.worker.fill_places(caller.organization_id)
        return stored

    async def list(self, caller: Principal, agent_id: str | None, page: PageQuery) -> Page[Budget]:
        """Returns a page of the caller's budgets, ordered by creation; with an agent, its own only."""
        return await self.store.list(caller.organization_id, agent_id, page)

    async def delete(self, caller: Principal, key: RequestKey | None, budget_id: str) -> None:
        """Deletes a budget. A missing one is not an error."""
        await self.store.delete(key, caller.organization_id, budget_id)
        await self.worker.fill_places(caller.organization_id)
