"""The part that accepts the calls of a service: the interface of gRPC and HTTP servers to `RunningServer`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mnemesh_kit.auth import Authenticator
from mnemesh_kit.config import ServerConfig
from mnemesh_kit.metrics import Metrics


class Listener(Protocol):
    """Accepts the calls of a service."""

    def bind(self) -> str:
        """Binds the port. Returns the address, with the port that it got. Raises StartupError."""
        ...

    async def serve(self) -> None:
        """Begins to accept calls, and reports that the service is ready."""
        ...

    async def stop(self, grace_seconds: float) -> None:
        """Reports that the service is not ready, and lets running calls finish. Also called if `bind` failed."""
        ...


@dataclass(frozen=True, slots=True)
class ListenerParts:
    """The parts of a server that its listener uses."""

    config: ServerConfig
    authenticator: Authenticator
    metrics: Metrics | None
