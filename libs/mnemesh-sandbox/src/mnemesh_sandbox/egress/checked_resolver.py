"""The resolver of aiohttp's connections. A module of its own, because aiohttp is loaded with the first download."""

import ipaddress
import socket

from aiohttp.abc import AbstractResolver, ResolveResult

from mnemesh_sandbox.egress.policy import EgressPolicy, Resolve, require_allowed


class CheckedResolver(AbstractResolver):
    """Resolves the names of aiohttp's connections. A connection uses exactly the addresses that were checked here.

    A second lookup, which could have another answer, does not take place.
    """

    def __init__(self, policy: EgressPolicy, resolve: Resolve) -> None:
        self._policy = policy
        self._resolve = resolve

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 - every family is tried
    ) -> list[ResolveResult]:
        """See AbstractResolver.

        Raises:
            EgressRefused: An address of the name is not allowed.
            OSError: The name has no address.
        """
        addresses = await self._resolve(host, port)
        for address in addresses:
            require_allowed(host, ipaddress.ip_address(address), port, self._policy)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """Holds nothing."""
