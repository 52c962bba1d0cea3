"""Who is calling: the organization and the subject that every row and every call carries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

ORGANIZATION_KEY: Final = "mnemesh-organization"
SUBJECT_KEY: Final = "mnemesh-subject"


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of the current request."""

    organization_id: str
    subject_id: str


DEFAULT_PRINCIPAL: Final = Principal(
    organization_id="org-00000000-0000-4000-8000-000000000000",
    subject_id="user-00000000-0000-4000-8000-000000000000",
)

_current: ContextVar[Principal] = ContextVar("mnemesh_principal", default=DEFAULT_PRINCIPAL)


def current_principal() -> Principal:
    """The principal of the request being served; the default one outside of any."""
    return _current.get()


def set_principal(principal: Principal) -> None:
    """Makes `principal` the current one for the rest of this task."""
    _current.set(principal)


@contextmanager
def as_principal(principal: Principal) -> Iterator[Principal]:
    """Acts for `principal` inside the block: background work, which has no caller of its own."""
    token = _current.set(principal)
    try:
        yield principal
    finally:
        _current.reset(token)
