"""The HTTP client that calls the callbacks of runs and batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from mnemesh_kit.network import failure_of_connection
from mnemesh_kit.public_resolver import PublicResolver, is_private_address, refusal

_SECONDS: Final = 10.0
_SETTING: Final = "MNEMESH_GATEWAY_CALLBACK_HOSTS"


class CallResult(NamedTuple):
    """The status of an answer, or the cause of the failure without one."""

    status: int | None
    error: str | None


class CallbackClient:
    """Calls URLs without following redirects. What an answer contains is not read.

    Args:
        hosts: the hosts that URLs can have; empty allows all.
        public_only: whether hosts must have public addresses.
    """

    def __init__(self, hosts: Sequence[str], *, public_only: bool) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)
        self._public_only = public_only
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: bytes) -> CallResult:
        """Sends JSON to a URL. Never raises."""
        host = urlsplit(url).hostname or ""
        if self._hosts and host not in self._hosts:
            return CallResult(None, f"{host} is none of the hosts in {_SETTING}.")
        if self._public_only and is_private_address(host):
            return CallResult(None, refusal(host, _SETTING) + ".")
        try:
            async with self._opened().post(url, data=body, allow_redirects=False) as answer:
                return CallResult(answer.status, None)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            return CallResult(None, f"The call failed: {failure_of_connection(url, error)}."[:500])

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            resolver = PublicResolver(_SETTING) if self._public_only else None
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(resolver=resolver),
                timeout=aiohttp.ClientTimeout(total=_SECONDS),
                headers={"Content-Type": "application/json", "User-Agent": "mnemesh"},
                auto_decompress=False,
            )
        return self._session

    async def close(self) -> None:
        """Ends the connections."""
        if self._session is not None:
            await self._session.close()
