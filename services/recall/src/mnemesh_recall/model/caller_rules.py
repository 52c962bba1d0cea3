"""The writes that each role allows: clients own the data, but only services of the mesh write as the step loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mnemesh_kit.errors import PermissionDenied
from mnemesh_kit.principal import Principal
from mnemesh_kit.principal import Role as CallerRole
from mnemesh_types.messages import Message, Role

from mnemesh_recall.model.leases import WriterLease

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
