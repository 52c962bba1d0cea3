"""Leases of conversations, and the state of runs that other processes execute."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Lease:
    """The right to execute a run. Every write of a run is conditional on its epoch.

    Writes to recall have the epoch `recall_epoch`, which is `lead` higher.
    """

    run_id: str
    conversation_id: str
    instance_id: str
    epoch: int
    lead: int = field(default=0, compare=False)

    @property
    def recall_epoch(self) -> int:
        """The epoch of writes to recall."""
        return self.epoch + self.lead


@dataclass(frozen=True, slots=True)
class RunHead:
    """The sequence number of the newest event of a run, and whether the run has ended."""

    sequence: int
    ended: bool


@dataclass(frozen=True, slots=True)
class Watched:
    """The leases that were lost, the ids of the runs that are to be cancelled, and the heads of runs."""

    lost: tuple[Lease, ...]
    cancelled: tuple[str, ...]
    heads: Mapping[str, RunHead]
