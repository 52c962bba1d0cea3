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
    usage: budgets_pb2.BudgetUsage
    limit: Any

    def amount(self, name: str) -> str:
        """Returns what was used of a limit, as `12 of 100`; without a limit, what was used."""
        show = dollars_of if name == "cost_nano_usd" else "{:,}".format
        used = show(getattr(self.usage, name))
        return f"{used} of {show(getattr(self.limit, f'max_{name}'))}" if self.limit.HasField(f"max_{name}") else used


def dollars_of(nano_usd: int) -> str:
    """Returns billionths of a dollar as dollars."""
    return dollars_text(nano_usd / _NANO)


_COLUMNS = (
    text_column("OF", lambda row: row.owner),
    Column("PER", lambda row: row.period),
    Column("REQUESTS", lambda row: row.amount("requests"), right=True),
    Column("TOKENS", lambda row: row.amount("tokens"), right=True),
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
    for limit in budget.limits:
        period = enum_text(budgets_pb2.BudgetPeriod, limit.period, "BUDGET_PERIOD_")
        yield _Row(budget.id, owner, period, usage[limit.period], limit)


@app.command("set")
@with_client
async def set_budget(
    mnemesh: Mnemesh,
    per: Annotated[Period, typer.Option(help="The period of the calendar, in UTC.")] = Period.DAY,
    requests: Annotated[int | None, typer.Option(min=0, help="The most calls of models.")] = None,
    tokens: Annotated[int | None, typer.Option(min=0, help="The most input and output tokens.")] = None,
    cost: Annotated[float | None, typer.Option(min=0, help="The highest cost in US dollars.")] = None,
    agent: OfAgentOption = None,
) -> None:
    """Set what your organization, or one agent, may use per period. Its limits for other periods stay.

    Without an amount, the limits of the period are removed.
    """
    agent_id = None if agent is None else (await mnemesh.agents.find(agent)).id
    period = budgets_pb2.BudgetPeriod.Value(f"BUDGET_PERIOD_{per.name}")
    limits = [
        limit
        async for budget in mnemesh.budgets.list(agent_id=agent_id)
        if budget.agent_id == (agent_id or "")
        for limit in budget.limits
        if limit.period != period
    ]
    if any(amount is not None for amount in (requests, tokens, cost)):
        nano_usd = None if cost is None else round(cost * _NANO)
        amounts = {"max_requests": requests, "max_tokens": tokens, "max_cost_nano_usd": nano_usd}
        limits.append(budgets_pb2.BudgetLimit(period=period, **amounts))
    print_record(await mnemesh.budgets.set(limits, agent_id=agent_id))


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
