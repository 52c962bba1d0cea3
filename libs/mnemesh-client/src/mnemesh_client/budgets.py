"""Budgets: what an organization and its agents may use, and what they have used."""

from collections.abc import AsyncIterator, Iterable

from mnemesh.agents.v1 import budgets_pb2, budgets_service_pb2, budgets_service_pb2_grpc

from mnemesh_client.paging import paginate
from mnemesh_client.transport import Channel


class BudgetsClient:
    """Calls of BudgetService, as `client.budgets`. Errors: InvalidArgument; NotFound for an agent."""

    def __init__(self, channel: Channel) -> None:
        self.stub = budgets_service_pb2_grpc.BudgetServiceStub(channel)

    async def set(
        self,
        limits: Iterable[budgets_pb2.BudgetLimit] = (),
        *,
        agent_limits: Iterable[budgets_pb2.BudgetLimit] = (),
        max_concurrent_runs: int | None = None,
        agent_id: str | None = None,
    ) -> budgets_pb2.Budget:
        """Creates the budget of the organization, or of an agent, or replaces its limits. What was used stays counted.

        `agent_limits` are those of each agent of the organization whose own budget has none.

        Example:
            >>> await client.budgets.set([BudgetLimit(period="BUDGET_PERIOD_DAY", max_tokens=1_000_000)])
        """
        budget = budgets_pb2.Budget(
            agent_id=agent_id, limits=limits, agent_limits=agent_limits, max_concurrent_runs=max_concurrent_runs
        )
        return (await self.stub.SetBudget(budgets_service_pb2.SetBudgetRequest(budget=budget))).budget

    def list(self, *, agent_id: str | None = None, limit: int | None = None) -> AsyncIterator[budgets_pb2.Budget]:
        """Yields budgets with their usage so far, in the order of their creation; with an agent, its own only."""
        filter_ = budgets_service_pb2.BudgetFilter(agent_id=agent_id)
        request = budgets_service_pb2.ListBudgetsRequest(filter=filter_)
        return paginate(self.stub.ListBudgets, request, "budgets", limit)

    async def delete(self, budget_id: str) -> None:
        """Deletes a budget with its usage. A missing one is not an error."""
        await self.stub.DeleteBudget(budgets_service_pb2.DeleteBudgetRequest(budget_id=budget_id))
