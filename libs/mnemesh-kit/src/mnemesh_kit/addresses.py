"""Which network addresses are public."""

from __future__ import annotations

import ipaddress
from typing import Final

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
# IPv4-compatible addresses, local NAT64, documentation and segment routing. Python 3.11 calls them global.
_RESERVED: Final = tuple(map(ipaddress.IPv6Network, ("::/96", "64:ff9b:1::/48", "3fff::/20", "5f00::/16")))


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
