"""Leases of writers on conversations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id

from mnemesh_recall.errors import LeaseLost

MAX_EPOCH_STEP: Final = 1 << 40
"""The largest step from the epoch of a conversation to that of a write."""


@dataclass(frozen=True, slots=True)
class WriterLease:
    """The lease under which a run writes to a conversation. The epoch rises with every takeover."""

    run_id: str
    epoch: int


def require_lease(lease: WriterLease, field: str) -> None:
    """Refuses a lease without a valid run id, or with a negative epoch.

    Raises:
        InvalidArgument: naming the part of `field` that is invalid.
    """
    require_id(lease.run_id, "run", f"{field}.run_id")
    if lease.epoch < 0:
        raise InvalidArgument(f"{field}.epoch must not be negative.", field=f"{field}.epoch")


def next_epoch(conversation_id: str, lease: WriterLease | None, current_epoch: int) -> int:
    """Returns the epoch of the conversation after a write under `lease`; None writes outside of a run.

    Raises:
        LeaseLost: the conversation has a higher epoch than the lease.
        InvalidArgument: the epoch is so far ahead that takeovers cannot have raised it. Nobody could overtake the
            largest epochs.
    """
    if lease is None:
        return current_epoch
    if lease.epoch < current_epoch:
        raise LeaseLost(conversation_id, current_epoch)
    if lease.epoch - current_epoch > MAX_EPOCH_STEP:
        raise InvalidArgument(
            f"lease.epoch must be at most {MAX_EPOCH_STEP:,} above the epoch of the conversation.", field="lease.epoch"
        )
    return lease.epoch
