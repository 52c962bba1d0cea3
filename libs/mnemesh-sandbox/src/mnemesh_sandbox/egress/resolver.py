"""Resolves names in threads of its own, a limited number for each organization.

A lookup of a name whose servers do not answer blocks a thread for half a minute, and cannot be stopped.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

_THREADS: Final = 64
_PER_ORGANIZATION: Final = 8

Resolve = Callable[[str, int], Coroutine[Any, Any, list[str]]]
"""Returns the IP addresses of a host and port, as texts. Raises OSError."""


class Resolver:
    """Resolves names as the system does. The lookups of one organization wait for each other."""

    def __init__(
        self,
        threads: int = _THREADS,
        per_organization: int = _PER_ORGANIZATION,
        getaddrinfo: Callable[..., list[Any]] = socket.getaddrinfo,
    ) -> None:
        """Creates no thread yet.

        Args:
            threads: The number of lookups at the same time.
            per_organization: The number of them for one organization.
            getaddrinfo: Looks up a name.
        """
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="resolver")
        self._per_organization = per_organization
        self._getaddrinfo = getaddrinfo
        self._limits: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()

    def for_organization(self, organization_id: str) -> Resolve:
        """Returns the function that resolves names for an organization."""

        async def resolve(host: str, port: int) -> list[str]:
            return await self._resolve(organization_id, host, port)

        return resolve

    async def close(self) -> None:
        """Starts no further lookup."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _resolve(self, organization_id: str, host: str, port: int) -> list[str]:
        limit = self._limits.setdefault(organization_id, asyncio.Semaphore(self._per_organization))
        self._users[organization_id] += 1
        try:
            await limit.acquire()
        except BaseException:
            self._leave(organization_id)
            raise

        def ended(_: object) -> None:
            limit.release()
            self._leave(organization_id)

        loop = asyncio.get_running_loop()
        lookup = loop.run_in_executor(self._threads, self._look_up, host, port)
        # When the thread is free, which is later than the end of a caller who is cancelled.
        lookup.add_done_callback(ended)
        return await asyncio.shield(lookup)

    def _leave(self, organization_id: str) -> None:
        self._users[organization_id] -= 1
        if not self._users[organization_id]:
            del self._users[organization_id], self._limits[organization_id]

    def _look_up(self, host: str, port: int) -> list[str]:
        found = self._getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(item[4][0]).partition("%")[0] for item in found))
