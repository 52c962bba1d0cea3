"""Authorizations of MCP servers by a person that have begun."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final

MAX_AUTHORIZATIONS: Final = 1_000
"""The authorizations of an organization; a further one replaces the oldest."""


class McpAuthorizationStatus(Enum):
    """How far an authorization is."""

    PENDING = "pending"
    """It waits for a person."""
    CLAIMED = "claimed"
    """A process exchanges the code for tokens. A code works once, so no other process tries it."""
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """True if the outcome is known."""
        return self in (McpAuthorizationStatus.COMPLETED, McpAuthorizationStatus.FAILED)


@dataclass(frozen=True, slots=True)
class McpAuthorization:
    """The last authorization of a server that has begun. Any process can complete it."""

    server_id: str
    organization_id: str
    subject_id: str
    """Who began it."""
    state_hash: str
    sealed: bytes
    """What the exchange of the code needs, as JSON."""
    created_at: datetime
    expires_at: datetime
    status: McpAuthorizationStatus = McpAuthorizationStatus.PENDING
    message: str | None = None
    """Why it failed, without secrets."""

    def __repr__(self) -> str:
        """Shows no value."""
        return f"McpAuthorization({self.server_id!r}, {self.status.value!r})"


def hash_of_state(state: str) -> str:
    """Returns the hash of an OAuth state. Who knows the state may end the authorization, so it is not stored."""
    return hashlib.sha256(state.encode()).hexdigest()
