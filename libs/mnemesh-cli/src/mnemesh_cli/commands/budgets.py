"""`mnemesh budgets`: list with what was used, set, delete."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from mnemesh.agents.v1 import budgets_pb2
from mnemesh_cli.commands.resources import enum_text, id_column, text_column, with_client
from mnemesh_cli.commands.runs import dollars_text
from mnemesh_cli.display.records import Column, print_done, print_list, print_record
from mnemesh_cli.display.terminal import is_json
from mnemesh_cli.display.views import AgentNames
from mnemesh_cli.options import OfAgentOption, YesOption
from mnemesh_client.mnemesh import Mnemesh

app = typer.Typer(no_args_is_help=True, help="Limit what your organization and its agents use, and see what they used.")

_NANO: Final = 1_000_000_000


class Period(StrEnum):
    """The periods of budgets."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True)
class _Row:
    """A limit with its usage, as a row of the table."""

    id: str
    owner: str
    period: str
    usage: budgets_pb2.BudgetUsage | None
    limit: Any
    most_runs: str

    def amount(self, name: str) -> str:
        """Returns what was used of a limit, as `12 of 100`; what is known of both."""
        most = f"max_{name}"
        show = dollars_of if name == "cost_nano_usd" else "{:,}".format
        known = [] if self.usage is None else [show(getattr(self.usage, name))]
        return " of ".join([*known, show(getattr(self.limit, most))] if self.limit.HasField(most) else known)


def dollars_of(nano_usd: int) -> str:
    """Returns billionths of a dollar as dollars."""
    return dollars_text(nano_usd / _NANO)


_COLUMNS = (
    text_column("OF", lambda row: row.owner),
    Column("PER", lambda row: row.period),
    Column("REQUESTS", lambda row: row.amount("requests"), right=True),
    Column("TOKENS", lambda row: row.amount("tokens"), right=True),
    Column("RUNS AT ONCE", lambda row: row.most_runs, right=True),
    Column("COST", lambda row: row.amount("cost_nano_usd"), right=True),
    id_column(),
)


@app.command("list")
@with_client
async def list_budgets(mnemesh: Mnemesh, agent: OfAgentOption = None) -> None:
    """List budgets with what was used in the current periods."""
    agent_id = None if agent is None else (await mnemesh.agents.find(agent)).id
    budgets = [budget async for budget in mnemesh.budgets.list(agent_id=agent_id)]
    empty = "There are no budgets."
    if is_json.get():
        await print_list(budgets, (), empty=empty)
        return
    names = AgentNames(mnemesh)
    owners = {id_: await names.name(id_) for id_ in dict.fromkeys(budget.agent_id for budget in budgets) if id_}
    rows = [row for budget in budgets for row in _rows(budget, owners.get(budget.agent_id, "all agents"))]
    await print_list(rows, _COLUMNS, empty=empty)


def _rows(budget: budgets_pb2.Budget, owner: str) -> Iterator[_Row]:
    usage = {item.period: item for item in budget.usage}
    most_runs = f"{budget.max_concurrent_runs:,}" if budget.HasField("max_concurrent_runs") else ""
    # A budget without limits of a period shows what was used today.
    for limit in budget.limits or [budgets_pb2.BudgetLimit(period=budgets_pb2.BUDGET_PERIOD_DAY)]:
        period = enum_text(budgets_pb2.BudgetPeriod, limit.period, "BUDGET_PERIOD_")
        yield _Row(budget.id, owner, period, usage[limit.period], limit, most_runs)
    for limit in budget.agent_limits:
        period = enum_text(budgets_pb2.BudgetPeriod, limit.period, "BUDGET_PERIOD_")
        yield _Row(budget.id, "each agent", period, None, limit, "")


@app.command("set")
@with_client
async def set_budget(
    mnemesh: Mnemesh,
    per: Annotated[Period, typer.Option(help="The period of the calendar, in UTC.")] = Period.DAY,
    requests: Annotated[int | None, typer.Option(min=0, help="The most calls of models.")] = None,
    tokens: Annotated[int | None, typer.Option(min=0, help="The most input and output tokens.")] = None,
    cost: Annotated[float | None, typer.Option(min=0, help="The highest cost in US dollars.")] = None,
    concurrent_runs: Annotated[
        int | None, typer.Option(min=0, help="The runs that execute at the same time, whatever the period.")
    ] = None,
    agent: OfAgentOption = None,
    each_agent: Annotated[
        bool, typer.Option("--each-agent", help="Limit each agent whose own budget has no limits.")
    ] = False,
) -> None:
    """Set what your organization, or one agent, may use per period. Its other limits stay.

    Delete the budget to remove them.
    """
    amounts = {"max_requests": requests, "max_tokens": tokens, "max_cost_nano_usd": _nano_usd(cost)}
    is_limit = any(amount is not None for amount in amounts.values())
    if not is_limit and concurrent_runs is None:
        raise typer.BadParameter("Name at least one limit. See `mnemesh budgets set --help`.", param_hint="options")
    agent_id = None if agent is None else (await mnemesh.agents.find(agent)).id
    period = budgets_pb2.BudgetPeriod.Value(f"BUDGET_PERIOD_{per.name}")
    limits: list[budgets_pb2.BudgetLimit] = []
    agent_limits: list[budgets_pb2.BudgetLimit] = []
    async for budget in mnemesh.budgets.list(agent_id=agent_id):
        if budget.agent_id == (agent_id or ""):
            limits, agent_limits = list(budget.limits), list(budget.agent_limits)
            if concurrent_runs is None and budget.HasField("max_concurrent_runs"):
                concurrent_runs = budget.max_concurrent_runs
    if is_limit:
        changed = agent_limits if each_agent else limits
        changed[:] = [limit for limit in changed if limit.period != period]
        changed.append(budgets_pb2.BudgetLimit(period=period, **amounts))
    budget = await mnemesh.budgets.set(
        limits, agent_limits=agent_limits, max_concurrent_runs=concurrent_runs, agent_id=agent_id
    )
    print_record(budget)


def _nano_usd(dollars: float | None) -> int | None:
    return None if dollars is None else round(dollars * _NANO)


@app.command("delete")
@with_client
async def delete_budget(
    mnemesh: Mnemesh,
    budget: Annotated[str, typer.Argument(metavar="BUDGET", help="Id of the budget.")],
    yes: YesOption = False,
) -> None:
    """Delete a budget, with what it has counted."""
    if not yes:
        typer.confirm(f"Delete {budget} and what it has counted?", abort=True, err=True)
    await mnemesh.budgets.delete(budget)
    print_done(f"deleted {budget}", {"deleted": budget})
