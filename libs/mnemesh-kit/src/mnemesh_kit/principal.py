"""The principal: the organization, the subject and the role for which a call or a background task acts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

ORGANIZATION_KEY: Final = "mnemesh-organization"
SUBJECT_KEY: Final = "mnemesh-subject"


class Role(StrEnum):
    """The role of a caller, which decides the RPCs that it may call; see `mnemesh_kit.access`."""

    CLIENT = "client"
    """An owner of the organization's data."""
    SERVICE = "service"
    """A service of the mesh, such as the step loop of the orchestrator, on behalf of the principal."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller: a subject, such as a user, in an organization."""

    organization_id: str
    subject_id: str
    role: Role = field(default=Role.SERVICE, compare=False)
    """The role in the credential of the call; a principal without one, as in background tasks, is the mesh's own.

    It is not part of the identity: a run stores organization and subject.
    """


DEFAULT_PRINCIPAL: Final = Principal(
    organization_id="org-00000000-0000-4000-8000-000000000000",
    subject_id="user-00000000-0000-4000-8000-000000000000",
)
"""The caller of a mesh without authentication, which may call everything."""

_current: ContextVar[Principal] = ContextVar("mnemesh_principal", default=DEFAULT_PRINCIPAL)


def current_principal() -> Principal:
    """Returns the principal of the request being served; outside of requests, the default one."""
    return _current.get()


def set_principal(principal: Principal) -> None:
    """Sets the current principal for the rest of this task."""
    _current.set(principal)


@contextmanager
def as_principal(principal: Principal) -> Iterator[Principal]:
    """Makes `principal` the current one within the block, for background tasks, which have no caller."""
    token = _current.set(principal)
    try:
        yield principal
    finally:
        _current.reset(token)
