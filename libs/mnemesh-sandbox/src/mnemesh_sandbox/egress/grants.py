"""Grants: the hosts that a tool may connect to."""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from publicsuffixlist import PublicSuffixList

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
