"""The calls of URLs that clients have given."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class CallResult(NamedTuple):
    """The status of an answer, or the cause of the failure without one."""

    status: int | None
    error: str | None


class Caller(Protocol):
    """Calls URLs."""

    async def post(self, url: str, body: bytes) -> CallResult:
        """Sends JSON to a URL. Never raises."""
        ...
