"""Which calls may use the proxies that the environment names.

A call within the mesh never does: its channels ignore these variables. A call of another server does, unless the server
is on this machine or in its own network: a proxy would look there on its own machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

VARIABLES: Final = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")


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
