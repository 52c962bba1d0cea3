"""Pools: runs of an organization of which a limited number executes at the same time."""

from dataclasses import dataclass
from enum import StrEnum


class RunPool(StrEnum):
    """The pools of an organization. Runs that a client waits for are in none."""

    SLEEPTIME = "sleeptime"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The places of each pool of an organization that has no setting of its own. 0 executes no run."""

    sleeptime: int = 8
    batch: int = 8

    def places(self, pool: RunPool) -> int:
        """Returns the number of runs of a pool that execute at the same time."""
        return self.sleeptime if pool is RunPool.SLEEPTIME else self.batch
