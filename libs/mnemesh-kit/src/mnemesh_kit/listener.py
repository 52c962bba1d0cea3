"""The part that accepts the calls of a service: the interface of gRPC and HTTP servers, and that of gRPC."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc
import structlog
from google.protobuf import descriptor_pool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2
from mnemesh.server.v1 import audit_service_pb2_grpc, server_service_pb2_grpc

from mnemesh_kit.access import FindOwners, largest_request
from mnemesh_kit.audit import AuditLog
from mnemesh_kit.audit_service import SERVICE_NAME as AUDIT_SERVICE
from mnemesh_kit.audit_service import AuditServicer
from mnemesh_kit.auth import Authenticator
from mnemesh_kit.config import ServerConfig, StartupError, TlsSettings
from mnemesh_kit.forwarding import Forwarder, ForwardingHealth
from mnemesh_kit.interceptors import Pipeline
from mnemesh_kit.local_calls import LocalServer, LocalServers
from mnemesh_kit.metrics import Metric, Metrics
from mnemesh_kit.network import is_loopback
from mnemesh_kit.server_info import SERVICE_NAME as SERVER_SERVICE
from mnemesh_kit.server_info import ServerInfoServicer
from mnemesh_kit.services import import_contracts
from mnemesh_kit.tls.credentials import ClientTls
from mnemesh_kit.tls.server import ServerTls
from mnemesh_kit.tracing import server_interceptors
from mnemesh_kit.transport import server_options

V1: Final = "grpc.reflection.v1.ServerReflection"
V1_ALPHA: Final = reflection.SERVICE_NAME
_log = structlog.get_logger("mnemesh.server")


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
    local: LocalServers | None = None
    """The servers of this process, which its services call without a connection."""


def add_reflection(services: Iterable[str], registry: Any) -> None:
    """Adds both versions of reflection to a server. Their messages are the same on the wire.

    Methods and fields can be described too, which the library does not find by their names.

    Args:
        services: the full names of the gRPC services to list; those of reflection are added.
        registry: the server.
    """
    library: Any = reflection.aio.ReflectionServicer((*services, V1, V1_ALPHA))

    async def answers(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for answer in library.ServerReflectionInfo(_with_known_symbols(requests), context):
            yield answer

    handler = grpc.stream_stream_rpc_method_handler(
        answers,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    methods = {"ServerReflectionInfo": handler}
    registry.add_generic_rpc_handlers(
        tuple(grpc.method_handlers_generic_handler(name, methods) for name in (V1, V1_ALPHA))
    )


async def _with_known_symbols(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Yields requests that ask for the service or the message in place of a method or a field: its file is the same."""
    async for request in requests:
        if request.HasField("file_containing_symbol"):
            parent = _parent_of_member(request.file_containing_symbol)
            yield reflection_pb2.ServerReflectionRequest(file_containing_symbol=parent) if parent else request
        else:
            yield request


def _parent_of_member(symbol: str) -> str | None:
    """Returns the name of the service or message that has this method or field; None for other symbols."""
    parent, _, member = symbol.rpartition(".")
    pool = descriptor_pool.Default()
    with suppress(KeyError):
        return parent if member in pool.FindServiceByName(parent).methods_by_name else None
    with suppress(KeyError):
        return parent if member in pool.FindMessageTypeByName(parent).fields_by_name else None
    return None


class GrpcListener:
    """A `Listener` that is a gRPC server."""

    def __init__(
        self,
        name: str,
        servicers: Sequence[tuple[Callable[[Any, Any], None], Any]],
        service_names: Sequence[str],
        properties: Mapping[str, str],
        forwarded: Mapping[str, str],
        metrics: Sequence[Metric],
        audit_log: AuditLog | None,
        find_owners: FindOwners,
        parts: ListenerParts,
    ) -> None:
        """Builds the server. The arguments are those of an `Assembly`."""
        self._names = tuple(service_names)
        self._config = parts.config
        tls = TlsSettings.of(parts.config)
        self._tls = ServerTls.of(tls)
        self._forwarder = Forwarder(forwarded, ClientTls(tls), parts.local)
        import_contracts(self._forwarder.names)
        self._health = ForwardingHealth(self._forwarder)
        pipeline = Pipeline(parts.authenticator, parts.config.max_concurrent_calls, parts.metrics, find_owners)
        options = server_options(largest_request((*self._names, *self._forwarder.names)))
        server = grpc.aio.server(interceptors=(pipeline, *server_interceptors()), options=options)
        registry: Any = _Registry(server)
        self._local_servers, self._local, self._address = parts.local, LocalServer(name, pipeline), ""
        for add, servicer in servicers:
            add(servicer, registry)
            add(servicer, self._local)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, registry)
        info = ServerInfoServicer(name, self._names, properties, self._forwarder, metrics)
        server_service_pb2_grpc.add_ServerServiceServicer_to_server(info, registry)
        described = [*self._names, *self._forwarder.names, SERVER_SERVICE, health.SERVICE_NAME]
        if audit_log is not None:
            audit = AuditServicer(name, audit_log, self._forwarder)
            audit_service_pb2_grpc.add_AuditServiceServicer_to_server(audit, registry)
            described.append(AUDIT_SERVICE)
        registry.add_generic_rpc_handlers((self._forwarder,))
        add_reflection(described, registry)
        self._server: Any = server

    def bind(self) -> str:
        """See `Listener`."""
        self._address = self._bind()
        return self._address

    def _bind(self) -> str:
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
        if self._local_servers is not None:
            self._local_servers.add(self._address, self._local)

    async def stop(self, grace_seconds: float) -> None:
        """See `Listener`."""
        await self._health.enter_graceful_shutdown()
        if self._local_servers is not None:
            self._local_servers.remove(self._address)
        await asyncio.gather(self._local.stop(grace_seconds), self._server.stop(grace_seconds))
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
