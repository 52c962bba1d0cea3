"""The gRPC server of a service, with health, reflection and server information."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from mnemesh.server.v1 import server_service_pb2_grpc

from mnemesh_kit.access import largest_request
from mnemesh_kit.auth import is_loopback
from mnemesh_kit.config import StartupError
from mnemesh_kit.forwarding import Forwarder, ForwardingHealth, import_contracts
from mnemesh_kit.interceptors import Pipeline
from mnemesh_kit.listener import ListenerParts
from mnemesh_kit.reflection import add_reflection
from mnemesh_kit.server_info import SERVICE_NAME as SERVER_SERVICE
from mnemesh_kit.server_info import ServerInfoServicer
from mnemesh_kit.tls.client import ClientTls
from mnemesh_kit.tls.server import ServerTls
from mnemesh_kit.tls.settings import TlsSettings
from mnemesh_kit.tracing import server_interceptors
from mnemesh_kit.transport import server_options

_log = structlog.get_logger("mnemesh.server")


class GrpcListener:
    """A `Listener` that is a gRPC server."""

    def __init__(
        self,
        name: str,
        servicers: Sequence[tuple[Callable[[Any, Any], None], Any]],
        service_names: Sequence[str],
        properties: Mapping[str, str],
        forwarded: Mapping[str, str],
        parts: ListenerParts,
    ) -> None:
        """Builds the server. The arguments are those of an `Assembly`."""
        self._names = tuple(service_names)
        self._config = parts.config
        tls = TlsSettings.of(parts.config)
        self._tls = ServerTls.of(tls)
        self._forwarder = Forwarder(forwarded, ClientTls(tls))
        import_contracts(self._forwarder.names)
        self._health = ForwardingHealth(self._forwarder)
        pipeline = Pipeline(parts.authenticator, parts.config.max_concurrent_calls, parts.metrics)
        options = server_options(largest_request((*self._names, *self._forwarder.names)))
        server = grpc.aio.server(interceptors=(pipeline, *server_interceptors()), options=options)
        registry: Any = _Registry(server)
        for add, servicer in servicers:
            add(servicer, registry)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, registry)
        info = ServerInfoServicer(name, self._names, properties, self._forwarder)
        server_service_pb2_grpc.add_ServerServiceServicer_to_server(info, registry)
        registry.add_generic_rpc_handlers((self._forwarder,))
        add_reflection((*self._names, *self._forwarder.names, SERVER_SERVICE, health.SERVICE_NAME), registry)
        self._server: Any = server

    def bind(self) -> str:
        """See `Listener`."""
        host, port = self._config.host, self._config.port
        if host.startswith("unix:"):
            self._server.add_insecure_port(host)
            return host
        name = f"[{host}]" if ":" in host else host
        try:
            return f"{name}:{self._add_port(f'{name}:{port}')}"
        except RuntimeError as error:
            raise StartupError(f"Cannot listen on {host}:{port}.") from error

    async def serve(self) -> None:
        """See `Listener`."""
        await self._server.start()
        for name in ("", *self._names):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, grace_seconds: float) -> None:
        """See `Listener`."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_seconds)
        await self._forwarder.close()

    def _add_port(self, address: str) -> int:
        if self._tls is not None:
            return int(self._server.add_secure_port(address, self._tls.credentials()))
        if not is_loopback(self._config.host):
            _log.warning("listening_without_tls", host=self._config.host)
        return int(self._server.add_insecure_port(address))


class _Registry:
    """The registry to which generated code adds servicers. gRPC looks a method up when a call of it arrives.

    With handlers registered per method, gRPC waits for the next call of each method in a task of its own, and every
    call sets up and ends the wait for all of these tasks: its cost grows with the number of methods of the service.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Adds the handlers of a service."""
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service_name: str, handlers: Mapping[str, Any]) -> None:
        """Adds nothing: the handlers of the service contain these."""
