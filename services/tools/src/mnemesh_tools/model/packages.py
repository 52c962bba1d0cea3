"""The state of the packages that a tool needs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from mnemesh_tools.model.tools import Requirement


class PackagesState(Enum):
    """The progress of the packages of a tool on one server."""

    PENDING = "pending"
    """They are resolved or installed at the next execution."""
    RESOLVING = "resolving"
    INSTALLING = "installing"
    READY = "ready"
    FAILED = "failed"
    """They cannot be installed. A later execution tries again."""


@dataclass(frozen=True, slots=True)
class PackagesStatus:
    """The packages of a tool as this server has them."""

    state: PackagesState
    locked: tuple[Requirement, ...] = ()
    """Every package with its exact version, once they are resolved."""
    error: str = ""
    """Why they cannot be installed."""
    size_bytes: int = 0
    started_at: datetime | None = None
    """The beginning of RESOLVING or INSTALLING."""
