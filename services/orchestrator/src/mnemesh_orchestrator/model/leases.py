"""Leases of conversations, and the state of runs that other processes execute."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to execute a run. Every write of a run is conditional on its epoch."""

    run_id: str
    conversation_id: str
    owner: str
    epoch: int


@dataclass(frozen=True, slots=True)
class RunHead:
    """How far a run has come: the number of its newest event, and whether that was the last."""

    sequence: int
    ended: bool


@dataclass(frozen=True, slots=True)
class Watched:
    """What became of leases and runs: those of other holders, runs that are to be cancelled, and each run's head."""

    lost: tuple[Lease, ...]
    cancelled: tuple[str, ...]
    heads: Mapping[str, RunHead]
