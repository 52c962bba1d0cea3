"""The deadline of the request being served, which also limits the outgoing calls."""

from __future__ import annotations

import time
from contextvars import ContextVar

_current: ContextVar[float | None] = ContextVar("mnemesh_deadline", default=None)


def remaining() -> float | None:
    """Returns the seconds left for the current request, never below zero; None if it has no deadline."""
    deadline = _current.get()
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def set_remaining(seconds: float | None) -> None:
    """Sets the seconds that the current request may still take; None for no deadline."""
    _current.set(None if seconds is None else time.monotonic() + seconds)
