"""Budgets: who pays for a call of a model, the periods of the calendar, and when a limit is reached."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import derive_id
from mnemesh_types.agents import Budget, BudgetLimit, BudgetPeriod, BudgetUsage
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.errors import BudgetExceeded
from mnemesh_orchestrator.model.runs import Step

MAX_AMOUNT: Final = 10**18
"""The largest limit."""
MAX_RUNS: Final = 100_000
_SKEW: Final = timedelta(minutes=10)
"""The most by which the clocks of two processes may differ."""
_LIMITED: Final = ("requests", "tokens", "cost_nano_usd")
_UNITS: Final = {"requests": "calls of models", "tokens": "tokens", "cost_nano_usd": "billionths of a US dollar"}


def budget_id(organization_id: str, agent_id: str | None) -> str:
    """Returns the id of the budget of an organization, or of one of its agents."""
    return derive_id("budget", organization_id, agent_id or "")


@dataclass(frozen=True, slots=True)
class Payer:
    """The organization and the agent whose budgets a call of a model needs. A run of a group has no agent: ""."""

    organization_id: str
    agent_id: str

    @property
    def budget_ids(self) -> tuple[str, str]:
        """The ids of the organization's budget and of the agent's."""
        return budget_id(self.organization_id, None), budget_id(self.organization_id, self.agent_id)


@dataclass(frozen=True, slots=True)
class Spending:
    """What calls of models have used."""

    requests: int = 0
    tokens: int = 0
    cost_nano_usd: int = 0

    def __add__(self, other: "Spending") -> "Spending":
        return Spending(
            self.requests + other.requests, self.tokens + other.tokens, self.cost_nano_usd + other.cost_nano_usd
        )

    def __sub__(self, other: "Spending") -> "Spending":
        return self + Spending(-other.requests, -other.tokens, -other.cost_nano_usd)

    @classmethod
    def of(cls, usage: Usage, requests: int = 1) -> "Spending":
        """Returns what calls with this usage have used. What is not known counts as 0."""
        tokens = usage.total_tokens
        if tokens is None:
            tokens = (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)
        return cls(requests, tokens, usage.cost_nano_usd or 0)

    @classmethod
    def of_steps(cls, steps: Iterable[Step]) -> "Spending":
        """Returns what steps have used together."""
        return sum((cls.of(step.usage, step.attempts) for step in steps), cls())


def period_at(period: BudgetPeriod, now: datetime) -> BudgetUsage:
    """Returns the period of the calendar that contains a time, in UTC, without usage."""
    start = now.astimezone(UTC).replace(second=0, microsecond=0)
    match period:
        case BudgetPeriod.MINUTE:
            end = start + timedelta(minutes=1)
        case BudgetPeriod.HOUR:
            start = start.replace(minute=0)
            end = start + timedelta(hours=1)
        case BudgetPeriod.DAY:
            start = start.replace(hour=0, minute=0)
            end = start + timedelta(days=1)
        case BudgetPeriod.MONTH:
            start = start.replace(day=1, hour=0, minute=0)
            end = (start + timedelta(days=31)).replace(day=1)
    return BudgetUsage(period, start, end)


def current_usage(usage: Sequence[BudgetUsage], now: datetime) -> tuple[BudgetUsage, ...]:
    """Returns the usage of the current period of each kind. A period that has ended is replaced by a new one.

    A clock that is behind that of another process does not bring an earlier period back. What was counted in the far
    future, by a clock that was wrong, is forgotten.
    """
    known = {item.period: item for item in usage if item.started_at <= now + _SKEW}
    periods = (period_at(period, now) for period in BudgetPeriod)
    return tuple(
        known[item.period] if item.period in known and known[item.period].started_at >= item.started_at else item
        for item in periods
    )


def with_spending(usage: Sequence[BudgetUsage], spent: Spending, now: datetime) -> tuple[BudgetUsage, ...]:
    """Returns the usage of the current periods after calls of models."""
    return tuple(
        replace(
            item,
            requests=item.requests + spent.requests,
            tokens=item.tokens + spent.tokens,
            cost_nano_usd=item.cost_nano_usd + spent.cost_nano_usd,
        )
        for item in current_usage(usage, now)
    )


def require_left(budget: Budget, now: datetime) -> None:
    """Raises BudgetExceeded if a limit is reached: the one whose period ends last."""
    reached = max(_reached(budget, now), key=lambda item: item[0].ended_at, default=None)
    if reached is None:
        return
    usage, name, most = reached
    owner = "The organization's" if budget.agent_id is None else "The agent's"
    seconds = ceil((usage.ended_at - now).total_seconds())
    error = BudgetExceeded(
        f"{owner} budget of {most:,} {_UNITS[name]} per {usage.period.value} is used up. "
        f"The next {usage.period.value} begins at {usage.ended_at:%Y-%m-%dT%H:%M:%SZ}.",
        budget_id=budget.id,
        period=usage.period.value,
        limit=name,
        max=str(most),
        used=str(getattr(usage, name)),
        retry_after_seconds=str(seconds),
    )
    if budget.agent_id is not None:
        error.metadata["resource_id"] = budget.agent_id
    raise error


def _reached(budget: Budget, now: datetime) -> Iterator[tuple[BudgetUsage, str, int]]:
    usage = {item.period: item for item in current_usage(budget.usage, now)}
    for limit in budget.limits:
        for name in _LIMITED:
            most: int | None = getattr(limit, f"max_{name}")
            if most is not None and getattr(usage[limit.period], name) >= most:
                yield usage[limit.period], name, most


def require_valid_budget(budget: Budget) -> Budget:
    """Returns a budget that can be set. Raises InvalidArgument if it has no limit, or one cannot be used."""
    most_runs = budget.max_concurrent_runs
    if budget.agent_limits and budget.agent_id is not None:
        raise InvalidArgument(
            "budget.agent_limits must be empty in the budget of an agent.", field="budget.agent_limits"
        )
    if not budget.limits and not budget.agent_limits and most_runs is None:
        raise InvalidArgument("budget.limits must have a limit. Delete the budget to remove it.", field="budget.limits")
    if most_runs is not None and not 0 <= most_runs <= MAX_RUNS:
        field = "budget.max_concurrent_runs"
        raise InvalidArgument(f"{field} must be between 0 and {MAX_RUNS:,}.", field=field)
    _require_valid_limits(budget.limits, "budget.limits")
    _require_valid_limits(budget.agent_limits, "budget.agent_limits")
    return budget


def _require_valid_limits(limits: Sequence[BudgetLimit], field_: str) -> None:
    periods = [limit.period for limit in limits]
    for index, limit in enumerate(limits):
        path = f"{field_}[{index}]"
        if limit.period in periods[:index]:
            raise InvalidArgument(f"{path}.period must be that of one limit only.", field=f"{path}.period")
        amounts = {name: getattr(limit, f"max_{name}") for name in _LIMITED}
        if all(most is None for most in amounts.values()):
            raise InvalidArgument(
                f"{path} must have max_requests, max_tokens or max_cost_nano_usd.", field=f"{path}.max_requests"
            )
        for name, most in amounts.items():
            if most is not None and not 0 <= most <= MAX_AMOUNT:
                field = f"{path}.max_{name}"
                raise InvalidArgument(f"{field} must be between 0 and {MAX_AMOUNT:,}.", field=field)
