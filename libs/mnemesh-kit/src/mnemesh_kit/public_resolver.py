"""Names that resolve to public addresses only, for URLs that callers choose. Needs aiohttp (extra `http`)."""

import errno
import ipaddress
import socket

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from mnemesh_kit.network import is_public, refusal


class PublicResolver(AbstractResolver):
    """Resolves names to public addresses. The connection uses exactly these, so a second lookup cannot differ.

    aiohttp does not resolve an address in the URL itself; see `is_private_address`.

    Args:
        setting: the variable that allows hosts with other addresses, for the message of the error.
    """

    def __init__(self, setting: str) -> None:
        self._resolver = aiohttp.ThreadedResolver()
        self._setting = setting

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Returns the addresses of a host. Raises PermissionError if one is not public."""
        results = await self._resolver.resolve(host, port, family)
        if not all(is_public(ipaddress.ip_address(result["host"].partition("%")[0])) for result in results):
            raise PermissionError(errno.EACCES, refusal(host, self._setting))
        return results

    async def close(self) -> None:
        """Ends the resolver."""
        await self._resolver.close()
