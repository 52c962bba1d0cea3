"""What a call carries: its principal, the correlation id, the deadline, and the service that it is in."""

import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

ORGANIZATION_KEY: Final = "mnemesh-organization"
SUBJECT_KEY: Final = "mnemesh-subject"
ROLE_KEY: Final = "mnemesh-role"
"""With it a service says that a call is its own. It gives no rights."""


class Role(StrEnum):
    """The role of a caller, which decides the RPCs that it may call; see `mnemesh_kit.access`.

    Each role may call what the roles before it may call.
    """

    READER = "reader"
    """Reads the organization's data."""
    WRITER = "writer"
    """Changes the organization's data, and sends messages to its agents."""
    ADMIN = "admin"
    """Decides which code runs, which keys are used and what is erased."""
    SERVICE = "service"
    """A service of the mesh, such as the step loop of the orchestrator, on behalf of the principal."""

    def covers(self, required: "Role") -> bool:
        """Returns whether a caller with this role may call what needs the required one."""
        return _RANKS[self] >= _RANKS[required]


_RANKS: Final = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller: a subject, such as a user, in an organization."""

    organization_id: str
    subject_id: str
    role: Role = field(default=Role.SERVICE, compare=False)
    """The role in the credential of the call; a principal without one, as in background tasks, is the mesh's own.

    It is not part of the identity: a run stores organization and subject.
    """
    agents: frozenset[str] | None = field(default=None, compare=False)
    """The ids of the agents to which the credential is limited; None if it is not limited."""
    expires_at: float | None = field(default=None, compare=False)
    """When the credential expires, in seconds since 1970; None without one, and for one of minutes."""
    issuer: str | None = field(default=None, compare=False)
    """The URL of the issuer of the credential; None for one of the key file."""


DEFAULT_PRINCIPAL: Final = Principal(
    organization_id="org-00000000-0000-4000-8000-000000000000",
    subject_id="user-00000000-0000-4000-8000-000000000000",
)
"""The caller of a mesh without authentication, which may call everything."""

_principal: ContextVar[Principal] = ContextVar("mnemesh_principal", default=DEFAULT_PRINCIPAL)


def current_principal() -> Principal:
    """Returns the principal of the request being served; outside of requests, the default one."""
    return _principal.get()


def set_principal(principal: Principal) -> None:
    """Sets the current principal for the rest of this task."""
    _principal.set(principal)


@contextmanager
def as_principal(principal: Principal) -> Iterator[Principal]:
    """Makes `principal` the current one within the block, for background tasks, which have no caller."""
    token = _principal.set(principal)
    try:
        yield principal
    finally:
        _principal.reset(token)


METADATA_KEY: Final = "mnemesh-correlation-id"
_VALID: Final = re.compile(r"[0-9A-Za-z_.:/-]{1,128}")
_correlation_id: ContextVar[str] = ContextVar("mnemesh_correlation_id", default="")


def current_correlation_id() -> str:
    """Returns the correlation id of the call being served, or "" outside of calls."""
    return _correlation_id.get()


def set_correlation_id(value: str | None = None) -> str:
    """Sets the correlation id of the current task to `value`, or to a new one if `value` is missing or not valid.

    Returns:
        The id that was set. A valid id has 1 to 128 ASCII letters, digits and `_.:/-`.
    """
    correlation_id = value if value and _VALID.fullmatch(value) else uuid.uuid4().hex
    _correlation_id.set(correlation_id)
    return correlation_id


_service: ContextVar[str] = ContextVar("mnemesh_service", default="")


def current_service() -> str:
    """Returns the short name of the service whose code runs, or "" outside of services."""
    return _service.get()


def set_service(name: str) -> None:
    """Sets the current service for the rest of this task, and for the tasks that it creates."""
    _service.set(name)


def service_context(name: str) -> Context:
    """Returns the context of a task that belongs to a service and to no call, also if a call creates it."""
    context = Context()
    context.run(set_service, name)
    return context


_deadline: ContextVar[float | None] = ContextVar("mnemesh_deadline", default=None)


def remaining() -> float | None:
    """Returns the seconds left for the current request, never below zero; None if it has no deadline."""
    deadline = _deadline.get()
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def set_remaining(seconds: float | None) -> None:
    """Sets the seconds that the current request may still take; None for no deadline."""
    _deadline.set(None if seconds is None else time.monotonic() + seconds)
