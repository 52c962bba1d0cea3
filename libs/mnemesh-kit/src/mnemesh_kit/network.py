"""Outgoing connections: base URLs in settings, public addresses, the use of proxies, and failures in words."""

import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Collection, Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
# IPv4-compatible addresses, local NAT64, documentation and segment routing. Python 3.11 calls them global.
_RESERVED: Final = tuple(map(ipaddress.IPv6Network, ("::/96", "64:ff9b:1::/48", "3fff::/20", "5f00::/16")))
VARIABLES: Final = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
_LIBRARY_TEXTS: Final = re.compile(r"Connect call failed|Multiple exceptions|All connection attempts failed")
"""The texts that asyncio, aiohappyeyeballs and anyio have in place of the system's."""
_ERRNO: Final = re.compile(r"\[Errno (\d+)\]")
_PLAIN_HTTP: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
_BROKEN: Final = re.compile(r"Disconnected|RemoteProtocol|ReadError|WriteError|Payload|Reset|Closed|EOF|BrokenPipe")
_DEPTH: Final = 12
_MAX_CHARACTERS: Final = 2_000
_VISIBLE: Final = re.compile(r"[!-~]+")


def is_public(address: IpAddress) -> bool:
    """Returns whether an address is globally reachable, also if IPv6 embeds an IPv4 address."""
    embedded = embedded_ipv4(address)
    if embedded is not None:
        return is_public(embedded)
    if isinstance(address, ipaddress.IPv6Address) and any(address in network for network in _RESERVED):
        return False
    return address.is_global and not address.is_multicast


def embedded_ipv4(address: IpAddress) -> ipaddress.IPv4Address | None:
    """Returns the IPv4 address to which a mapped, 6to4, Teredo or NAT64 address leads; None for others."""
    if not isinstance(address, ipaddress.IPv6Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


def may_use_proxy(url: str) -> bool:
    """Returns whether proxies apply to a URL: not to one of loopback, nor to one whose name has no domain."""
    host = urlsplit(url).hostname or ""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return "." in host and not host.endswith(".localhost")


def proxies_of(env: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the variables of an environment that name a proxy, in lower or upper case."""
    return tuple(name for each in VARIABLES for name in (each, each.upper()) if env.get(name))


def failure_of_connection(url: str, error: BaseException) -> str:
    """Returns host and port of a URL and why it was not reached, such as `127.0.0.1:81: connection refused`.

    No user, path or query of the URL is part of the text, since they may be secret. The text has no full stop.
    """
    address = address_of(url)
    return f"{address}: {reason_of_failure(error)}" if address else reason_of_failure(error)


def address_of(url: str) -> str:
    """Returns `host:port` of a URL; an empty text if it has no host."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        return ""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return "" if not host else f"{host}:{port}" if port else host


def reason_of_failure(error: BaseException) -> str:
    """Returns why a connection failed. The cause that knows the system's reason decides, else the type of the error."""
    causes = tuple(_causes(error))
    for cause in causes:
        if (text := _system_reason(cause)) is not None:
            return text
    names = " ".join(type(cause).__name__ for cause in causes)
    if any(name in names for name in ("InvalidURL", "InvalidUrl", "UnsupportedProtocol", "NonHttpUrl")):
        return "the URL is not valid"
    if "Timeout" in names:
        return "it did not answer in time"
    return "it closed the connection" if _BROKEN.search(names) else "the connection failed"


def _system_reason(cause: BaseException) -> str | None:
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its TLS certificate is not valid ({cause.verify_message or 'verification failed'})"
    if isinstance(cause, ssl.SSLError):
        if cause.reason in _PLAIN_HTTP:
            return "it does not use TLS at this address; does the URL have to begin with http://?"
        return f"the TLS connection failed ({cause.reason or 'it was closed'})"
    if isinstance(cause, socket.gaierror):
        return "the name of the host is not known"
    if not isinstance(cause, OSError):
        return None
    text, number = cause.strerror or "", cause.errno
    if _LIBRARY_TEXTS.search(str(cause)):
        found = _ERRNO.search(text or str(cause))
        number = number or (int(found[1]) if found else None)
        text = ""
    if not number or number < 0:
        return None
    text = text or os.strerror(number)
    return text[:1].lower() + text[1:] if text == os.strerror(number) else text


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields what caused an error before the error itself, and the first of a group."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and len(chain) < _DEPTH and current not in chain:
        chain.append(current)
        if isinstance(current, BaseExceptionGroup):
            current = current.exceptions[0]
            continue
        inner = getattr(current, "os_error", None)  # of aiohttp's errors of connections
        # httpcore suppresses the context, which is the system's error.
        current = inner if isinstance(inner, BaseException) else current.__cause__ or current.__context__
    yield from reversed(chain)


def base_url_problem(url: str) -> str | None:
    """Returns what is wrong with a base URL, None if nothing is. The answer does not contain the URL."""
    if len(url) > _MAX_CHARACTERS or not _VISIBLE.fullmatch(url):
        return f"must have 1 to {_MAX_CHARACTERS:,} visible ASCII characters"
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        return "must be an http or https URL"
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        return "must have neither credentials nor a query; set the API key in its own setting"
    return None


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach a server that listens on `host`."""
    if host == "localhost" or host.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_private_address(host: str) -> bool:
    """Returns whether the host of a URL is an address, not a name, and not public."""
    try:
        return not is_public(ipaddress.ip_address(host))
    except ValueError:
        # Systems take other numbers for addresses, too: 2130706433 and 127.1 are 127.0.0.1. No name looks like them.
        # HTTP clients turn other characters, such as a digit in a circle, into digits and dots.
        return not host.isascii() or host.replace(".", "").isdecimal()


def host_problem(url: str, hosts: Collection[str], setting: str, *, public_only: bool) -> str | None:
    """Returns why the host of a URL that a caller chose must not be called, None if it may be.

    A name may still resolve to an address that is not public; see `PublicResolver`.

    Args:
        url: the URL.
        hosts: the hosts that may be called, in lower case; empty allows all.
        setting: the variable that has them.
        public_only: whether an address must be public.
    """
    host = (urlsplit(url).hostname or "").lower()
    if hosts and host not in hosts:
        return f"{host} is none of the hosts in {setting}"
    is_local = is_private_address(host) or host == "localhost" or host.endswith(".localhost")
    return refusal(host, setting) if public_only and is_local else None


def refusal(host: str, setting: str) -> str:
    """Returns the message of the error for a host that is not public."""
    return f"{host} has an address that is not public. Only hosts in {setting} may have one"
