"""Which layers of isolation this host grants, found by trying, and what they add up to."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from mnemesh_tools.sandbox.inside import plan as layer

WANTED_AS_ROOT = frozenset(layer.LAYERS) - {layer.USER_NAMESPACE}
WANTED_AS_USER = frozenset(layer.LAYERS) - {layer.OWN_UID}
_NAMESPACES = frozenset(
    {
        layer.PID_NAMESPACE,
        layer.NETWORK_NAMESPACE,
        layer.IPC_NAMESPACE,
        layer.PRIVATE_ROOT,
        layer.PRIVATE_PROC,
    }
)


class Level(IntEnum):
    """What the layers add up to; more is safer."""

    NONE = 0
    """No tool runs."""
    MINIMAL = 1
    """No network, no files of others; but the server's own uid and process table."""
    RESTRICTED = 2
    """No network, no files of others, and no way to the server's processes."""
    FULL = 3
    """Namespaces of its own for processes, network, IPC and files, and a filter on system calls."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """What holds on this host."""

    layers: frozenset[str]
    missing: Mapping[str, str] = field(default_factory=dict)
    """Layers that were tried and refused, with the host's reason."""

    @property
    def level(self) -> Level:
        """The highest level whose every condition holds."""
        on = self.layers
        offline = bool({layer.SECCOMP, layer.NETWORK_NAMESPACE} & on)
        files = bool({layer.PRIVATE_ROOT, layer.LANDLOCK, layer.OWN_UID} & on)
        apart = layer.OWN_UID in on or {layer.USER_NAMESPACE, layer.PID_NAMESPACE} <= on
        namespaces = _NAMESPACES - {layer.PRIVATE_PROC} <= on
        if not (offline and files):
            return Level.NONE
        if not apart:
            return Level.MINIMAL
        return Level.FULL if namespaces and layer.SECCOMP in on else Level.RESTRICTED


async def find(
    attempt: Callable[[Collection[str]], Awaitable[tuple[str, str] | None]], wanted: Collection[str] | None = None
) -> Isolation:
    """Tries with all wanted layers, and again without each that the host refuses, until a run succeeds.

    Args:
        attempt: runs a trivial tool with these layers; gives the layer that failed and why, or None. A failure that
            belongs to no layer has an empty name.
        wanted: the layers to try; by default all that make sense for this process's uid.
    """
    root = os.geteuid() == 0
    trying = set(wanted if wanted is not None else WANTED_AS_ROOT if root else WANTED_AS_USER)
    missing: dict[str, str] = {}
    while trying:
        failed = await attempt(_without_redundant(trying))
        if failed is None:
            return Isolation(frozenset(_without_redundant(trying)), missing)
        name, why = failed
        missing[name or "interpreter"] = why
        # Without its own uid root's tool would be root; an unnamed failure leaves nothing to take away.
        if name not in trying or (root and name == layer.OWN_UID):
            break
        trying -= {name, *(_NAMESPACES if name == layer.USER_NAMESPACE else ())}
    return Isolation(frozenset(), missing)


def _without_redundant(layers: Collection[str]) -> set[str]:
    """Landlock stands in for the private root, and a private /proc is a part of it in a namespace of its own."""
    kept = set(layers)
    if layer.PRIVATE_ROOT in kept:
        kept -= {layer.LANDLOCK}
    if not {layer.PRIVATE_ROOT, layer.PID_NAMESPACE} <= kept:
        kept -= {layer.PRIVATE_PROC}
    return kept
