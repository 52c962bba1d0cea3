"""Writers: their leases on conversations, and the writes that each role allows.

Clients own the data, but only services of the mesh write as the step loop.
"""

from collections.abc import Sequence
from typing import Final

from mnemesh_kit.call_context import Principal
from mnemesh_kit.call_context import Role as CallerRole
from mnemesh_kit.errors import InvalidArgument, PermissionDenied
from mnemesh_kit.ids import require_id
from mnemesh_types.messages import Message, Role
from mnemesh_types.recall import WriterLease

from mnemesh_recall.errors import LeaseLost

MAX_EPOCH_STEP: Final = 1 << 40
"""The largest step from the epoch of a conversation to that of a write."""


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


CLIENT_ROLES: Final = frozenset({Role.USER, Role.SYSTEM})
"""The roles of messages that a client may append. What an agent said or did is written by the step loop."""
_LOOP_FIELDS: Final = ("run_id", "step_id", "model")


def require_appendable(caller: Principal, messages: Sequence[Message]) -> None:
    """Checks that the caller may append these messages.

    Raises:
        PermissionDenied: a client appends a message that only the step loop writes.
    """
    if caller.role is CallerRole.SERVICE:
        return
    for index, message in enumerate(messages):
        if message.role not in CLIENT_ROLES:
            raise _denied(f"messages[{index}].role", "A client may append messages of the roles USER and SYSTEM.")
        for name in _LOOP_FIELDS:
            if getattr(message, name) is not None:
                raise _denied(f"messages[{index}].{name}", f"A client must not set {name}.")


def require_lease_holder(caller: Principal, lease: WriterLease | None) -> None:
    """Checks that the caller may write under a lease.

    Raises:
        PermissionDenied: a client names a lease. Its epoch would stop the real lease holder.
    """
    if lease is not None and caller.role is not CallerRole.SERVICE:
        raise _denied("lease", "Only services of the mesh hold leases. Omit the lease.")


def _denied(field: str, message: str) -> PermissionDenied:
    return PermissionDenied(message, field=field, required_role=CallerRole.SERVICE.value)
