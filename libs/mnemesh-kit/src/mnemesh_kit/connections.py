"""The gRPC channels to one target: one per service, opened again when the certificates of the process are replaced."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import grpc

from mnemesh_kit.retries import service_config, service_descriptor
from mnemesh_kit.tls.client import ClientTls
from mnemesh_kit.transport import CHANNEL_OPTIONS

RETIRED_SECONDS: Final = 3600.0
"""How long a channel with earlier certificates is kept for the calls that are open on it."""


class Connections:
    """The gRPC channels to a target, which are opened when they are needed."""

    def __init__(self, target: str, tls: ClientTls) -> None:
        self._target = target
        self._tls = tls
        self._encrypts = tls.encrypts(target)
        self._by_service: dict[str, grpc.aio.Channel] = {}
        self._generation = tls.generation
        self._retired: list[tuple[float, grpc.aio.Channel]] = []

    def callable(self, method: str, create: Callable[[grpc.aio.Channel], Any]) -> Any:
        """Returns what calls a method: `create` of the channel. With TLS, of the one with the newest certificates."""
        service = method.split("/")[1]
        return _Newest(self, service, create) if self._encrypts else create(self.of(service))

    def of(self, service: str) -> grpc.aio.Channel:
        """Returns the channel for the calls of a service, whose retry policy it has."""
        channel = self._by_service.get(service)
        if channel is None:
            options = (*CHANNEL_OPTIONS, ("grpc.service_config", service_config(service_descriptor(service))))
            channel = self._by_service[service] = self._tls.open(self._target, options)
        return channel

    def first(self) -> grpc.aio.Channel:
        """Returns the channel of the service that was called first."""
        return next(iter(self._by_service.values()), None) or self.of("")

    def refresh(self) -> int:
        """Looks for replaced certificates. Returns their generation: calls of a new one use new channels."""
        generation = self._tls.refresh()
        if generation != self._generation:
            self._generation, now = generation, time.monotonic()
            # A channel without references closes itself.
            self._retired = [(since, each) for since, each in self._retired if now - since < RETIRED_SECONDS]
            self._retired += [(now, each) for each in self._by_service.values()]
            self._by_service = {}
        return generation

    async def close(self, grace: float | None) -> None:
        """Closes all channels."""
        retired, self._retired = self._retired, []
        current, self._by_service = self._by_service, {}
        for channel in (*current.values(), *(each for _, each in retired)):
            await channel.close(grace)


class _Newest:
    """The callable of a method on the channel with the newest certificates."""

    def __init__(self, connections: Connections, service: str, create: Callable[[grpc.aio.Channel], Any]) -> None:
        self._connections = connections
        self._service = service
        self._create = create
        self._generation = connections.refresh()
        self._callable = create(connections.of(service))

    def __call__(self, request: Any, **options: Any) -> Any:
        generation = self._connections.refresh()
        if generation != self._generation:
            self._generation, self._callable = generation, self._create(self._connections.of(self._service))
        return self._callable(request, **options)
