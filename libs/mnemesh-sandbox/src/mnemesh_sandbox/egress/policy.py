"""The operator's rules of network access, which no grant of a tool overrides, and the connections that they refuse."""

import ipaddress
from dataclasses import dataclass
from enum import Enum
from typing import Final

from mnemesh_kit.network import IpAddress, embedded_ipv4, is_public

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
