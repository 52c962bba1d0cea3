"""Budgets: their limits, what was used, and the check before a call of a model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import NotFound
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import paginate
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_kit.time import Clock
from mnemesh_types.agents import Budget, BudgetLimit, BudgetPeriod, BudgetUsage
from mnemesh_types.twin import EPOCH

from mnemesh_orchestrator.model.budgets import Payer, Spending, budget_id, current_usage, require_left, with_spending
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.store.agent_rows import active
from mnemesh_orchestrator.store.tables import agents, budgets, request_ledger

_ENCODE = msgspec.json.Encoder().encode
_LIMITS = msgspec.json.Decoder(tuple[BudgetLimit, ...])
_USAGE = msgspec.json.Decoder(tuple[BudgetUsage, ...])
_ID: Final[sa.BindParameter[str]] = sa.bindparam("p_id")
_FIND: Final = Prepared(sa.select(budgets).where(budgets.c.id == _ID))
_AGENT: Final = sa.select(agents.c.id).where(agents.c.id == _ID)
_COUNT: Final = Prepared(
    budgets.update().where(budgets.c.id == _ID).values(usage=sa.bindparam("new_usage", type_=budgets.c.usage.type))
)


@dataclass(frozen=True, slots=True)
class Budgets:
    """The statements about budgets, for transactions of runs.

    An operator's limit holds for each organization beside its own budget. What it has used is counted in the row of
    that budget, which is created if it does not exist. So is that of an agent that has the limits of each agent.
    """

    tokens_per_day: int = 0
    """The operator's limit on the tokens of an organization per day; 0 is none."""

    def payer(self, conversation: Any, run: Run) -> Payer | None:
        """Returns who pays for a run in a locked conversation; None if nothing limits it.

        A run of a group has no agent: it needs the budget of the organization.
        """
        is_limited = conversation.has_budget or self.tokens_per_day
        return Payer(run.organization_id, run.agent_id) if is_limited else None

    def require(self, conn: sa.Connection, payer: Payer, now: datetime) -> None:
        """Raises BudgetExceeded if a budget of the payer is used up."""
        whole, own = self._find(conn, payer)
        require_left(whole, now)
        if self.tokens_per_day:
            require_left(replace(whole, limits=(BudgetLimit(BudgetPeriod.DAY, max_tokens=self.tokens_per_day),)), now)
        if payer.agent_id:
            require_left(own if own.limits else replace(own, limits=whole.agent_limits), now)

    def count(self, conn: sa.Connection, payer: Payer, spent: Spending, now: datetime) -> None:
        """Adds to what the budgets of a payer have used."""
        if spent == Spending():
            return
        whole, own = self._find(conn, payer)
        is_agent = bool(whole.agent_limits) and conn.execute(_AGENT, {"p_id": payer.agent_id}).first() is not None
        for budget, is_counted in ((whole, self.tokens_per_day > 0), (own, is_agent)):
            used = replace(budget, usage=with_spending(budget.usage, spent, now))
            if budget.created_at != EPOCH:
                _COUNT.send(conn, {"p_id": budget.id, "new_usage": _ENCODE(used.usage)})
            elif is_counted:
                new = replace(used, created_at=now, updated_at=now)
                conn.execute(budgets.insert(), _row(payer.organization_id, new))

    def _find(self, conn: sa.Connection, payer: Payer) -> tuple[Budget, Budget]:
        """Returns the budgets of the organization and of the agent. One that is not stored has no limits."""
        whole, own = (_FIND.first(conn, {"p_id": id_}) for id_ in payer.budget_ids)
        ids = payer.budget_ids
        return (
            Budget(ids[0]) if whole is None else decode_budget(whole),
            Budget(ids[1], payer.agent_id) if own is None else decode_budget(own),
        )


def decode_budget(row: Any) -> Budget:
    return Budget(
        id=row.id,
        agent_id=row.agent_id,
        limits=_LIMITS.decode(row.limits),
        agent_limits=_LIMITS.decode(row.agent_limits),
        max_concurrent_runs=row.max_concurrent_runs,
        usage=_USAGE.decode(row.usage),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _row(organization_id: str, budget: Budget) -> dict[str, Any]:
    return {
        "id": budget.id,
        "organization_id": organization_id,
        "agent_id": budget.agent_id,
        "limits": _ENCODE(budget.limits),
        "agent_limits": _ENCODE(budget.agent_limits),
        "max_concurrent_runs": budget.max_concurrent_runs,
        "usage": _ENCODE(budget.usage),
        "created_at": budget.created_at,
        "updated_at": budget.updated_at,
    }


class BudgetStore:
    """The budgets of organizations and agents.

    Example:
        >>> await store.set(None, organization_id, Budget(limits=(BudgetLimit(BudgetPeriod.DAY, max_requests=1),)))
        >>> await store.count(Payer(organization_id, agent_id), Spending(requests=1))
        >>> await store.require(Payer(organization_id, agent_id))
        BudgetExceeded: The organization's budget of 1 calls of models per day is used up.
    """

    def __init__(self, database: Database, clock: Clock, rules: Budgets) -> None:
        self._database = database
        self._clock = clock
        self._rules = rules
        self._ledger = Ledger(database, request_ledger, clock)

    async def set(self, key: RequestKey | None, organization_id: str, budget: Budget) -> Budget:
        """Creates the budget of an organization or an agent, or replaces its limits. Returns it as it is stored.

        Raises:
            NotFound: The agent does not exist.
        """
        id_, now = budget_id(organization_id, budget.agent_id), self._clock.now()

        def effect(conn: sa.Connection) -> Sequence[str]:
            if budget.agent_id is not None:
                active(conn, organization_id, budget.agent_id)
            new = replace(budget, id=id_, usage=(), created_at=now, updated_at=now)
            row = _row(organization_id, new)
            values = {name: row[name] for name in ("limits", "agent_limits", "max_concurrent_runs", "updated_at")}
            if conn.execute(budgets.update().where(budgets.c.id == id_).values(values)).rowcount == 0:
                conn.execute(budgets.insert(), row)
            return [id_]

        def read(conn: sa.Connection, _: Sequence[str]) -> Budget:
            row = _FIND.first(conn, {"p_id": id_})
            if row is None:
                raise NotFound("The budget was deleted since.", resource_id=id_)
            return self._shown(row)

        return await self._ledger.write_and_read(key, effect, read)

    async def list(self, organization_id: str, agent_id: str | None, page: PageQuery) -> Page[Budget]:
        """Returns a page of budgets ordered by creation, with their current usage; with an agent, its own only."""
        scope = budgets.c.organization_id == organization_id
        query = sa.select(budgets).where(scope)
        if agent_id is not None:
            query = query.where(budgets.c.id == budget_id(organization_id, agent_id))

        def read(conn: sa.Connection) -> Page[Budget]:
            return paginate(conn, query, page, key=budgets.c.created_at, id=budgets.c.id, scope=scope).map(self._shown)

        return await self._database.read(read)

    async def delete(self, key: RequestKey | None, organization_id: str, id_: str) -> None:
        """Deletes a budget. A missing one is not an error. What an operator's limit has counted stays."""
        where = (budgets.c.organization_id == organization_id, budgets.c.id == id_)
        keeps = self._rules.tokens_per_day and id_ == budget_id(organization_id, None)
        cleared = budgets.update().values(limits=_ENCODE(()), agent_limits=_ENCODE(()), max_concurrent_runs=None)
        statement = cleared if keeps else budgets.delete()

        def effect(conn: sa.Connection) -> Sequence[str]:
            conn.execute(statement.where(*where))
            return [id_]

        await self._ledger.write_once(key, effect)

    async def require(self, payer: Payer) -> None:
        """Raises BudgetExceeded if a budget of the payer is used up."""
        now = self._clock.now()
        await self._database.read(lambda conn: self._rules.require(conn, payer, now))

    async def count(self, payer: Payer, spent: Spending) -> None:
        """Adds what calls of models outside of runs have used."""
        now = self._clock.now()
        await self._database.write(
            lambda conn: self._rules.count(conn, payer, spent, now), name="budgets.count", contended=True
        )

    def _shown(self, row: Any) -> Budget:
        budget = decode_budget(row)
        return replace(budget, usage=current_usage(budget.usage, self._clock.now()))
