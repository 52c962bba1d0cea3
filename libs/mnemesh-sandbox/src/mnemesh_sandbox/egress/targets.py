"""The addresses that one URL may lead to: names are resolved, and each hop of a download is checked."""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, urljoin, urlsplit

from mnemesh_kit.network import IpAddress

from mnemesh_sandbox.egress.grants import DEFAULT_PORTS, HostInvalid, normalized_host
from mnemesh_sandbox.egress.policy import EgressPolicy, EgressRefused, Refusal

_THREADS: Final = 64
_PER_ORGANIZATION: Final = 8

Resolve = Callable[[str, int], Coroutine[Any, Any, list[str]]]
"""Returns the IP addresses of a host and port, as texts. Raises OSError."""
MAX_URL_CHARS: Final = 2_000
_PRIVILEGED_PORTS: Final = 1024
# Ports of other protocols, to which browsers send no requests either (https://fetch.spec.whatwg.org/#port-blocking).
_BLOCKED_PORTS: Final = frozenset(
    {1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, *range(6665, 6670), 6679, 6697, 10080}
)
_BAD_REQUEST: Final = 400
_FORBIDDEN: Final = 403


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


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that has the form of one that may be fetched. Its addresses have not been checked."""

    url: str
    host: str
    """In its normalized form."""
    port: int


def target_of(url: str, base: str | None = None) -> Target:
    """Returns the target of a URL, or of a link on the page `base`.

    Raises:
        EgressRefused: It is not the URL of a page: another scheme, a name and password in it, or a port of another
            protocol.
    """
    try:
        parts = urlsplit((url if base is None else urljoin(base, url)).strip())
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = normalized_host(parts.hostname or "")
        if "%" in host:
            raise HostInvalid("the address names an interface of this host")
    except (HostInvalid, ValueError) as error:
        raise EgressRefused(_BAD_REQUEST, Refusal.INVALID, f"The URL is not valid: {error}.") from error
    if parts.scheme not in ("http", "https"):
        raise EgressRefused(_BAD_REQUEST, Refusal.INVALID, "The URL must begin with http:// or https://.")
    if parts.username is not None or parts.password is not None:
        raise EgressRefused(_BAD_REQUEST, Refusal.INVALID, "The URL must not contain a user name or a password.")
    if port not in DEFAULT_PORTS and (port < _PRIVILEGED_PORTS or port in _BLOCKED_PORTS):
        raise EgressRefused(_FORBIDDEN, Refusal.NOT_GRANTED, f"The port {port} is not one of web servers.")
    target = _without_fragment(parts)
    if len(target) > MAX_URL_CHARS:
        raise EgressRefused(_BAD_REQUEST, Refusal.INVALID, f"The URL is longer than {MAX_URL_CHARS:,} characters.")
    return Target(target, host, port)


def require_allowed(host: str, address: IpAddress, port: int, policy: EgressPolicy) -> None:
    """Raises EgressRefused for an address that is not public, or that is one of this host itself.

    The operator's networks are allowed in both cases.
    """
    if policy.allows_address(address):
        is_private = any(
            address.version == network.version and address in network for network in policy.private_networks
        )
        if is_private or not _is_own(address, port):
            return
    text = f"{host} has an address that is not public. The operator can allow it ({policy.networks_setting})."
    raise EgressRefused(_FORBIDDEN, Refusal.ADDRESS, text)


def _is_own(address: IpAddress, port: int) -> bool:
    """Returns whether packets to an address would stay on this host. Sends none."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), port or 1))
            return bool(probe.getsockname()[0] == str(address))
    except OSError:
        return False  # there is no route to it


def _without_fragment(parts: SplitResult) -> str:
    return parts._replace(fragment="").geturl()
