"""Connections that an execution made or was refused, for the audit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

MAX_RECORDED: Final = 100
"""Further connections of an execution are logged and counted, but not returned."""


class Refusal(Enum):
    """Why a connection was not made, or was cut."""

    NOT_GRANTED = "not_granted"
    ADDRESS = "address_not_allowed"
    UNRESOLVED = "unresolved"
    UNREACHABLE = "unreachable"
    TOO_MANY = "too_many_connections"
    TOO_MUCH = "too_many_bytes"
    INVALID = "invalid_request"


@dataclass(slots=True)
class NetworkConnection:
    """A connection, or the attempt to make one."""

    host: str
    port: int
    address: str = ""
    """The IP address; "" if there was no connection."""
    sent_bytes: int = 0
    received_bytes: int = 0
    seconds: float = 0.0
    refusal: Refusal | None = None


class EgressRefused(Exception):
    """The proxy refuses a connection."""

    def __init__(self, status: int, refusal: Refusal, text: str) -> None:
        super().__init__(text)
        self.status = status
        """The HTTP status that the tool receives."""
        self.refusal = refusal
