"""Calls that a server forwards: one address of a mesh serves the gRPC services of several.

A forwarded call is neither parsed nor answered here. Its bytes, its metadata and its deadline go to the service that
owns the method; the responses, the status and the error details come back unchanged. Only calls that clients may make
are forwarded; the receiving service authenticates them again.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from mnemesh_kit.access import rule_of
from mnemesh_kit.call_context import METADATA_KEY, current_correlation_id
from mnemesh_kit.errors import (
    DETAILS_KEY,
    PUSHBACK_KEY,
    InvalidArgument,
    MnemeshError,
    NotFound,
    Unavailable,
    from_rpc_error,
)
from mnemesh_kit.local_calls import LocalMethod, LocalServers
from mnemesh_kit.outgoing import bounded
from mnemesh_kit.retries import service_descriptor
from mnemesh_kit.services import SERVICES
from mnemesh_kit.tls.credentials import ClientTls
from mnemesh_kit.transport import Connections

_HEALTH_SECONDS: Final = 2.0
_OF_CONNECTION: Final = frozenset({"user-agent", "content-type", "te"})
"""Headers of one connection. So are those that begin with `grpc-`, except for the next ones."""
_OF_CALL: Final = frozenset({DETAILS_KEY, PUSHBACK_KEY})

Context = grpc.aio.ServicerContext[Any, Any]
A = TypeVar("A", bound=Message)


def forwarded_services(targets: Mapping[str, str]) -> dict[str, str]:
    """Returns the target of each gRPC service, by its full name.

    Args:
        targets: the targets of services of the mesh by their short names, such as `{"blocks": "127.0.0.1:50051"}`.
    """
    return {name: targets[spec.name] for spec in SERVICES if spec.name in targets for name in spec.proto_services}


class Forwarder(grpc.GenericRpcHandler):
    """The handler of the calls that other services of the mesh answer."""

    def __init__(self, targets: Mapping[str, str], tls: ClientTls, local: LocalServers | None = None) -> None:
        """Creates the handler; nothing connects before the first call.

        Args:
            targets: the target of each gRPC service, by its full name.
            tls: the files for encrypted connections.
            local: the servers of this process, which are called without a connection.
        """
        self._targets = targets
        self._local = local
        self._connections = {target: Connections(target, tls) for target in set(targets.values())}

    @property
    def names(self) -> tuple[str, ...]:
        """The full names of the gRPC services."""
        return tuple(self._targets)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Returns the handler of a method; None for one that is not forwarded."""
        method = handler_call_details.method
        target = self._targets.get(method.split("/")[1]) if method.count("/") == 2 else None
        if target is None or not rule_of(method).is_for_clients:
            return None
        # On the wire, a single response is a stream of one. The receiving service knows how many there must be.
        kind = "stream_stream" if _is_streamed(method) else "unary_stream"

        def connect() -> Any:
            return self._connections[target].callable(method, lambda channel: getattr(channel, kind)(method))

        call = (
            connect() if self._local is None else LocalMethod(self._local, target, kind, method, (None, None), connect)
        )

        async def forward(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
            async with _Forwarded(context) as forwarded:
                await forwarded.begin(call, requests, is_streamed=_is_streamed(method))
                async for response in forwarded.responses():
                    yield response

        return grpc.stream_stream_rpc_method_handler(forward)

    def channel_of(self, service: str, proto_service: str) -> grpc.aio.Channel | None:
        """Returns a channel to a service of the mesh, by its short name; None if its calls are not forwarded.

        Args:
            service: the short name, such as `blocks`.
            proto_service: the full name of the gRPC service to call there.
        """
        names = next((spec.proto_services for spec in SERVICES if spec.name == service), ())
        target = next((self._targets[name] for name in names if name in self._targets), None)
        return None if target is None else self._connections[target].of(proto_service)

    async def ask(
        self, service: str, method: str, request: Message, answer: type[A], context: Context, *, seconds: float
    ) -> A:
        """Calls a method that every service serves for itself, with the metadata and the deadline of a call.

        Args:
            service: the short name of the service, such as `blocks`.
            method: the path of the method.
            request: the request.
            answer: the class of the response.
            context: the call that needs the answer.
            seconds: the longest time to wait.

        Raises:
            NotFound: the service is not served here.
            Unavailable: the service cannot be reached.
            MnemeshError: its refusal.
        """
        channel = self.channel_of(service, method.split("/")[1])
        if channel is None:
            raise NotFound(f"The service {service[:100]!r} is not served here.")
        call: Any = channel.unary_unary(method, type(request).SerializeToString, answer.FromString)
        try:
            response: A = await call(
                request,
                timeout=bounded(seconds),
                metadata=end_to_end(context.invocation_metadata()),
            )
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise Unavailable(f"The service {service} cannot be reached.") from error
            raise from_rpc_error(error) from error
        return response

    async def is_serving(self, name: str) -> bool:
        """Returns whether the service that owns a gRPC service reports that it is ready."""
        connection = self._connections[self._targets[name]]
        stub: Any = health_pb2_grpc.HealthStub(connection.of(health.SERVICE_NAME))
        request = health_pb2.HealthCheckRequest(service=name)
        with suppress(grpc.aio.AioRpcError):
            answer = await stub.Check(request, timeout=_HEALTH_SECONDS)
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
        return False

    async def close(self) -> None:
        """Closes the connections."""
        for connection in self._connections.values():
            await connection.close(None)


class ForwardingHealth(health.aio.HealthServicer):
    """Health of the own services, and of those whose calls are forwarded."""

    def __init__(self, forwarder: Forwarder) -> None:
        super().__init__()
        self._forwarder = forwarder

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        """Returns the state of a service. That of a forwarded one is asked for at each call."""
        if request.service not in self._forwarder.names:
            response: health_pb2.HealthCheckResponse = await super().Check(request, context)
            return response
        is_serving = await self._forwarder.is_serving(request.service)
        state = health_pb2.HealthCheckResponse.SERVING if is_serving else health_pb2.HealthCheckResponse.NOT_SERVING
        return health_pb2.HealthCheckResponse(status=state)


class _Forwarded:
    """One forwarded call, which is cancelled at the end of its block."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._refusal: MnemeshError | None = None
        self._call: Any = None

    async def __aenter__(self) -> "_Forwarded":
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._call is not None:
            self._call.cancel()

    async def begin(self, call: Any, requests: AsyncIterator[bytes], *, is_streamed: bool) -> None:
        """Calls the service that owns the method.

        A single request is not sent as a stream: if the service refuses the call before it has read the request, a
        stream ends with gRPC's own INTERNAL in place of the refusal, now and then.

        Raises:
            MnemeshError: the request is refused here.
            InvalidArgument: the call has no request.
        """
        given = end_to_end(self._context.invocation_metadata())
        metadata = (*(item for item in given if item[0] != METADATA_KEY), (METADATA_KEY, current_correlation_id()))
        sent: Any = self._send(requests) if is_streamed else await anext(requests, None)
        if sent is None:
            raise InvalidArgument("The call has no request.")
        self._call = call(sent, timeout=self._context.time_remaining(), metadata=metadata)

    async def responses(self) -> AsyncIterator[bytes]:
        """Yields the responses, and ends the call with its status."""
        try:
            async for response in self._call:
                yield response
        except asyncio.CancelledError:
            if self._refusal is not None:
                raise self._refusal from None
            raise
        except grpc.aio.AioRpcError as error:
            if self._refusal is not None:
                raise self._refusal from None
            trailers = end_to_end(error.trailing_metadata())
            if all(key != DETAILS_KEY for key, _ in trailers) and isinstance(from_rpc_error(error), Unavailable):
                raise Unavailable("The service of this method cannot be reached. Try again.") from error
            await self._context.abort(error.code(), error.details() or "", trailers)

    async def _send(self, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yields the requests. One that is refused here ends the call with its error."""
        try:
            async for request in requests:
                yield request
        except MnemeshError as error:
            self._refusal = error
            self._call.cancel()


def _is_streamed(method: str) -> bool:
    """Returns whether a call of a method has several requests."""
    _, service, name = method.split("/")
    descriptor = service_descriptor(service)
    return descriptor is None or bool(descriptor.methods_by_name[name].client_streaming)


def end_to_end(metadata: Any) -> tuple[tuple[str, str | bytes], ...]:
    """Returns the headers or trailers of a call without those of its connection."""
    return tuple(
        (key, value)
        for key, value in metadata or ()
        if key in _OF_CALL or not (key in _OF_CONNECTION or key.startswith(("grpc-", ":")))
    )
