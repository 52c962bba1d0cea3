"""`mnemesh.agents.v1.BudgetService`."""

from typing import Any, Final

import grpc
from mnemesh.agents.v1 import budgets_pb2 as pb
from mnemesh.agents.v1 import budgets_service_pb2 as rpc
from mnemesh.agents.v1 import budgets_service_pb2_grpc
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id, require_ids
from mnemesh_kit.paging import bounded, next_page_token, page_query
from mnemesh_types.agents import Budget
from mnemesh_types.twin import optional_field, written

from mnemesh_orchestrator.usecases.budgets import BudgetService

Context = grpc.aio.ServicerContext[Any, Any]
_WRITABLE: Final = ("agent_id", "limits", "agent_limits", "max_concurrent_runs")


class BudgetsServicer(budgets_service_pb2_grpc.BudgetServiceServicer):
    """Serves the budgets."""

    def __init__(self, service: BudgetService) -> None:
        self._service = service

    async def SetBudget(self, request: rpc.SetBudgetRequest, context: Context) -> rpc.SetBudgetResponse:
        key, budget = request_key(request, "SetBudget"), _draft(request.budget)
        stored = await self._service.set(current_principal(), key, budget)
        return rpc.SetBudgetResponse(budget=stored.to_proto())

    async def ListBudgets(self, request: rpc.ListBudgetsRequest, context: Context) -> rpc.ListBudgetsResponse:
        require_ids(request.filter, "filter", agent_id="agent")
        query, agent_id = page_query(request), optional_field(request.filter, "agent_id")
        found = await self._service.list(current_principal(), agent_id, query)
        page = bounded(query, found.map(Budget.to_proto))
        return rpc.ListBudgetsResponse(budgets=page.items, next_page_token=next_page_token(query, page))

    async def DeleteBudget(self, request: rpc.DeleteBudgetRequest, context: Context) -> rpc.DeleteBudgetResponse:
        key, budget_id = request_key(request, "DeleteBudget"), require_id(request.budget_id, "budget", "budget_id")
        await self._service.delete(current_principal(), key, budget_id)
        return rpc.DeleteBudgetResponse()


def _draft(message: pb.Budget) -> Budget:
    """Returns the budget that a caller wants to set. Raises InvalidArgument."""
    require_ids(message, "budget", agent_id="agent")
    for name, limits in (("limits", message.limits), ("agent_limits", message.agent_limits)):
        for index, limit in enumerate(limits):
            if limit.period == pb.BUDGET_PERIOD_UNSPECIFIED:
                raise InvalidArgument("period must be set.", field=f"budget.{name}[{index}].period")
    return Budget.from_proto(written(message, _WRITABLE), "budget")
