"""Outgoing calls of any generated stub: the caller's identity, correlation ids, deadlines, retries and typed errors.

The module wraps the callables of a channel, because gRPC's client interceptors cost a task per call.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

import grpc

from mnemesh_kit.auth import AUTHORIZATION_KEY, MESH_AUDIENCE, TokenMint, is_loopback, read_keys
from mnemesh_kit.connections import Connections
from mnemesh_kit.correlation import METADATA_KEY, current_correlation_id
from mnemesh_kit.deadline import remaining
from mnemesh_kit.errors import DeadlineExceeded, MnemeshError, by_reason, from_rpc_error
from mnemesh_kit.failpoints import async_failpoint
from mnemesh_kit.principal import ORGANIZATION_KEY, SUBJECT_KEY, Role, current_principal
from mnemesh_kit.retries import request_id_number, service_descriptor
from mnemesh_kit.services import SERVICES
from mnemesh_kit.tls.client import ClientTls, host_of
from mnemesh_kit.tls.settings import TlsSettings

DEADLINE_SECONDS: Final = 10.0
STREAM_DEADLINE_SECONDS: Final = 3600.0

Metadata = tuple[tuple[str, str], ...]
# The standard library's logger, because this module is also part of programs that do not configure the kit's.
_log = logging.getLogger("mnemesh.channels")
_SERVICE_OF: Final = {name: spec.name for spec in SERVICES for name in spec.proto_services}


class Channels:
    """The outgoing channels of a process: one per target and service, open until `close`.

    Example:
        >>> channels = Channels()
        >>> stub = BlockServiceStub(channels.channel("127.0.0.1:50051"))
        >>> response = await stub.GetBlock(GetBlockRequest(block_id=block_id))
    """

    def __init__(
        self,
        *,
        errors: Sequence[type[MnemeshError]] = (),
        auth_key_file: str | None = None,
        role: Role = Role.CLIENT,
        token: str | None = None,
        deadline: float = DEADLINE_SECONDS,
        tls: TlsSettings | ClientTls | None = None,
    ) -> None:
        """Creates the channels; nothing connects before the first call.

        Args:
            errors: error classes of the caller. A remote error with the reason of one is raised as that class.
            auth_key_file: a file of keys. Calls carry tokens for the current principal, signed with the first key.
            role: the role of these tokens. A service of the mesh calls the others as one.
            token: a bearer token for all calls instead, for clients outside of the mesh.
            deadline: the timeout in seconds of calls without a timeout.
            tls: the files for TLS. None: connections are not encrypted, except to addresses `tls://…`.

        Raises:
            ConfigError: a file of keys or certificates is missing or wrong.
        """
        self.known = by_reason(errors)
        self.deadline = deadline
        self._mint = TokenMint(read_keys(auth_key_file)[0], role) if auth_key_file is not None else None
        self._role = role
        self._token = token
        self.tls = tls if isinstance(tls, ClientTls) else ClientTls(tls)
        self._channels: dict[str, Channel] = {}

    def channel(self, target: str) -> Channel:
        """Returns the channel to `target` for generated stubs.

        Args:
            target: `host:port`, `unix:path` or `dns:///name:port`; after `tls://`, the connection is always encrypted.
        """
        known = self._channels.get(target)
        if known is None:
            has_token = self._token is not None or self._mint is not None
            if has_token and not self.tls.encrypts(target) and not is_loopback(host_of(target)):
                _log.warning("Tokens are sent to %s without TLS. Set MNEMESH_GRPC_TLS_CA_FILE.", target)
            known = self._channels[target] = Channel(target, self)
        return known

    async def close(self) -> None:
        """Closes all channels and cancels their running calls."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    def audience(self, method: str) -> str:
        """Returns the audience of the tokens for a method. A token of a service is valid for the called one only."""
        is_service = self._role is Role.SERVICE
        return _SERVICE_OF.get(method.split("/")[1], MESH_AUDIENCE) if is_service else MESH_AUDIENCE

    def metadata(self, audience: str) -> Metadata:
        """Returns the metadata of a call: the correlation id, and a token or the current principal."""
        correlation_id = current_correlation_id()
        head: Metadata = ((METADATA_KEY, correlation_id),) if correlation_id else ()
        if self._token is not None:
            return (*head, (AUTHORIZATION_KEY, f"Bearer {self._token}"))
        principal = current_principal()
        if self._mint is not None:
            return (*head, (AUTHORIZATION_KEY, self._mint.header(principal, audience)))
        return (*head, (ORGANIZATION_KEY, principal.organization_id), (SUBJECT_KEY, principal.subject_id))


class Channel(grpc.aio.Channel):
    """A channel for generated stubs. It has one gRPC channel per service, because the retry policy is per service."""

    def __init__(self, target: str, channels: Channels) -> None:
        self._channels = channels
        self._connections = Connections(target, channels.tls)

    def unary_unary(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """Returns a callable from a request to its response."""
        serializer = _adding_request_id(method, request_serializer)
        inner = self._connections.callable(
            method, lambda channel: channel.unary_unary(method, serializer, response_deserializer)
        )
        return _Single(method, inner, self._channels)

    def unary_stream(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """Returns a callable from a request to an asynchronous iterator of responses."""
        serializer = _adding_request_id(method, request_serializer)
        inner = self._connections.callable(
            method, lambda channel: channel.unary_stream(method, serializer, response_deserializer)
        )
        return _Streaming(method, inner, self._channels)

    def stream_unary(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """Returns a callable from an iterator of requests to one response."""
        inner = self._connections.callable(
            method, lambda channel: channel.stream_unary(method, request_serializer, response_deserializer)
        )
        return _Single(method, inner, self._channels)

    def stream_stream(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """Returns a callable from an iterator of requests to an asynchronous iterator of responses."""
        inner = self._connections.callable(
            method, lambda channel: channel.stream_stream(method, request_serializer, response_deserializer)
        )
        return _Streaming(method, inner, self._channels)

    async def close(self, grace: float | None = None) -> None:
        """Closes the gRPC channels."""
        await self._connections.close(grace)

    async def __aenter__(self) -> Channel:
        """Returns the channel itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the channel."""
        await self.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Returns the state of the connection for the first service."""
        return self._connections.first().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Waits until the state is no longer `last_observed_state`."""
        await self._connections.first().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Waits until the connection is ready."""
        await self._connections.first().channel_ready()


class _Single:
    """A method with one response."""

    def __init__(self, method: str, inner: Any, channels: Channels) -> None:
        self._method = method
        self._inner = inner
        self._channels = channels
        self._audience = channels.audience(method)

    async def __call__(self, request: Any, *, timeout: float | None = None, **options: Any) -> Any:  # noqa: ASYNC109
        channels = self._channels
        metadata = (*channels.metadata(self._audience), *(options.pop("metadata", None) or ()))
        await async_failpoint("call.before", self._method)
        try:
            response = await self._inner(
                request, timeout=_bounded(timeout or channels.deadline), metadata=metadata, **options
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, channels.known) from error
        await async_failpoint("call.after", self._method)
        return response


class _Streaming:
    """A method with a stream of responses."""

    def __init__(self, method: str, inner: Any, channels: Channels) -> None:
        self._inner = inner
        self._channels = channels
        self._audience = channels.audience(method)

    def __call__(self, request: Any, *, timeout: float | None = None, **options: Any) -> Stream:
        channels = self._channels
        metadata = (*channels.metadata(self._audience), *(options.pop("metadata", None) or ()))
        bounded = _bounded(timeout or STREAM_DEADLINE_SECONDS)
        return Stream(self._inner(request, timeout=bounded, metadata=metadata, **options), channels.known)


class Stream:
    """The responses of a streaming call."""

    def __init__(self, call: Any, known: Mapping[str, type[MnemeshError]]) -> None:
        self._call = call
        self._known = known

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Yields the responses. Closing the iterator early cancels the call.

        Raises:
            MnemeshError: the typed error that ended the stream.
        """
        try:
            async for message in self._call:
                yield message
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, self._known) from error
        finally:
            self._call.cancel()

    def cancel(self) -> bool:
        """Cancels the call and the server's handler. Returns False if the call is already over."""
        return bool(self._call.cancel())


def _bounded(timeout: float) -> float:
    left = remaining()
    if left is None:
        return timeout
    if left <= 0:
        raise DeadlineExceeded("The caller's deadline has passed.")
    return min(timeout, left)


def _adding_request_id(method: str, serializer: Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    """Returns a serializer that adds a new `request_id` to a request without one.

    The message itself is not changed. gRPC's retries send the same bytes, and so the same id.
    """
    _, service, name = method.split("/")
    descriptor = service_descriptor(service)
    number = request_id_number(descriptor.methods_by_name[name]) if descriptor is not None else None
    if number is None or serializer is None:
        return serializer
    tag = bytes([number << 3 | 2, 36]) if number < 16 else None
    if tag is None:
        raise ValueError(f"{method}: request_id must have a field number below 16")

    def serialize(request: Any) -> bytes:
        data = serializer(request)
        return data if request.request_id else data + tag + str(uuid.uuid4()).encode()

    return serialize
