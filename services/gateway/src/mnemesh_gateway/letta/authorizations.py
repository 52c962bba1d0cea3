"""Pending OAuth authorizations of MCP servers. A request waits until the browser is redirected back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from mnemesh_kit.errors import DeadlineExceeded


class Authorizations:
    """The authorizations that this process has started, by OAuth state. Each state is used once."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Mapping[str, str]]] = {}

    async def answer(self, state: str, seconds: float) -> Mapping[str, str]:
        """Waits for the parameters of the redirect. Raises DeadlineExceeded."""
        waiting: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
        self._waiting[state] = waiting
        try:
            async with asyncio.timeout(seconds):
                return await waiting
        except TimeoutError as error:
            raise DeadlineExceeded("The access was not authorized in time.") from error
        finally:
            del self._waiting[state]

    def receive(self, parameters: Mapping[str, str]) -> bool:
        """Passes the parameters of a redirect to the waiting request. Returns False if no request waits."""
        waiting = self._waiting.get(parameters.get("state", ""))
        if waiting is None or waiting.done():
            return False
        waiting.set_result(parameters)
        return True
