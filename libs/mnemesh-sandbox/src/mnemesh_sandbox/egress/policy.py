"""Which connections are allowed: policies, targets and grants."""

import asyncio
import ipaddress
import re
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urljoin, urlsplit

from mnemesh_kit.network import IpAddress, embedded_ipv4, is_public

if TYPE_CHECKING:
    from publicsuffixlist import PublicSuffixList

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
MAX_RECORDED: Final = 100
"""Further connections of an execution are logged and counted, but not returned."""


class NetworkAccess(Enum):
    """The network access that tools can have."""

    NONE = "none"
    """No tool has access."""
    HOSTS = "hosts"
    """A tool has access to the hosts that it names."""
    ANY = "any"
    """A tool can also have access to every public host."""


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """The limits of one execution's connections."""

    access: NetworkAccess = NetworkAccess.HOSTS
    private_networks: tuple[IpNetwork, ...] = ()
    """The networks that are allowed although they are not public."""
    networks_setting: str = "MNEMESH_TOOLS_PRIVATE_NETWORKS"
    """The setting of `private_networks`, which refusals name."""
    max_bytes: int = 64 * 1024 * 1024
    """Of all connections together, in both directions."""
    max_connections: int = 32
    """At the same time."""
    max_attempts: int = 5_000
    """Of connections, one after another. The log has a line for each."""
    connect_seconds: float = 10.0
    """To resolve a name, and to connect to an address."""

    def allows_address(self, address: IpAddress) -> bool:
        """Returns whether connections to an address are allowed: public ones, and those of the operator's networks."""
        if any(address.version == network.version and address in network for network in self.private_networks):
            return True
        embedded = embedded_ipv4(address)
        if embedded is not None:
            return self.allows_address(embedded)
        return is_public(address)


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


DEFAULT_PORTS: Final = frozenset({80, 443})
MAX_HOSTS: Final = 100
_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_MAX_NAME_CHARS: Final = 253
_MAX_PORT: Final = 65_535
_MAX_PORT_DIGITS: Final = 5


class HostInvalid(Exception):
    """A text names no host. The message says why."""


@dataclass(frozen=True, slots=True)
class GrantedHost:
    """A host, or all subdomains of one."""

    name: str
    """In lower case and in ASCII form, or an IP address; "" for every host."""
    port: int | None = None
    """None stands for the ports 80 and 443."""
    covers_subdomains: bool = False
    """The rule is for the subdomains of `name`, and not for `name` itself."""

    def allows(self, host: str, port: int) -> bool:
        """Returns whether a connection to this host, in its normalized form, and port is granted."""
        if port != self.port and (self.port is not None or port not in DEFAULT_PORTS):
            return False
        if self.covers_subdomains:
            return host.endswith(f".{self.name}")
        return self.name in ("", host)


@dataclass(frozen=True, slots=True)
class NetworkGrant:
    """The hosts that one tool may connect to."""

    hosts: tuple[GrantedHost, ...]

    def allows(self, host: str, port: int) -> bool:
        """Returns whether a connection to this host, in its normalized form, and port is granted."""
        return any(granted.allows(host, port) for granted in self.hosts)


ANY_HOST: Final = NetworkGrant((GrantedHost(""),))


def grant_of(hosts: Iterable[str]) -> NetworkGrant:
    """Returns the grant of hosts such as "api.example.com", "*.example.com", "example.com:8443" and "[2001:db8::1]:80".

    Raises:
        HostInvalid: A text names no host.
    """
    return NetworkGrant(tuple(_granted_host(text) for text in hosts))


def normalized_host(host: str) -> str:
    """Returns a host name in lower case and ASCII form without a final dot, or an IP address in its usual form.

    Raises:
        HostInvalid: The text is neither.
    """
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    name = host.removesuffix(".").lower()
    if not name.isascii():
        try:
            name = name.encode("idna").decode("ascii")
        except UnicodeError as error:
            raise HostInvalid(f"{host[:100]!r} is not the name of a host") from error
    labels = name.split(".")
    # The system reads "127.1" and "0x7f.1" as addresses: the last part of a name is not a number.
    if len(name) > _MAX_NAME_CHARS or not all(_LABEL.fullmatch(label) for label in labels) or labels[-1][0].isdigit():
        raise HostInvalid(f"{host[:100]!r} is not the name of a host")
    return name


def split_port(text: str) -> tuple[str, int | None]:
    """Returns the host and the port of "host", "host:port", "[address]" or "[address]:port".

    Raises:
        HostInvalid: The port is not a number between 1 and 65535.
    """
    host, separator, port = text.rpartition(":")
    if not separator or port.endswith("]") or (":" in host and not host.startswith("[")):
        return text, None
    if not (port.isascii() and port.isdigit()) or len(port) > _MAX_PORT_DIGITS or not 0 < int(port) <= _MAX_PORT:
        raise HostInvalid(f"{text[:100]!r} has no valid port")
    return host, int(port)


def _granted_host(text: str) -> GrantedHost:
    host, port = split_port(text.strip())
    is_wildcard = host.startswith("*.")
    name = normalized_host(host[2:] if is_wildcard else host)
    if is_wildcard and ("." not in name or _is_address(name)):
        raise HostInvalid(f"{text[:100]!r} covers too much: a wildcard needs at least two labels after it")
    if is_wildcard and _suffixes().is_public(name):
        raise HostInvalid(f"{text[:100]!r} covers too much: anyone can have a name below {name}")
    return GrantedHost(name, port, is_wildcard)


@cache
def _suffixes() -> "PublicSuffixList":
    """Returns the suffixes below which anyone can have a name, such as co.uk and github.io. They are in the package."""
    from publicsuffixlist import PublicSuffixList  # noqa: PLC0415 - it loads 10,000 rules, and few tools need them

    return PublicSuffixList()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


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
