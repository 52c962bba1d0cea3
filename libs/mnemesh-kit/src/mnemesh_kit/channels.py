"""Outgoing calls of any generated stub: the caller's identity, correlation ids, deadlines, retries and typed errors.

The module wraps the callables of a channel, because gRPC's client interceptors cost a task per call.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from functools import cached_property, partialmethod
from typing import Any

import grpc

from mnemesh_kit.errors import MnemeshError, from_rpc_error
from mnemesh_kit.failpoints import async_failpoint
from mnemesh_kit.local_calls import LocalMethod, LocalServers
from mnemesh_kit.outgoing import STREAM_DEADLINE_SECONDS, OutgoingCalls, adding_request_id, bounded
from mnemesh_kit.transport import Connections


class Channels(OutgoingCalls["Channel"]):
    """The outgoing channels of a process: one per target and service, open until `close`.

    Example:
        >>> channels = Channels()
        >>> stub = BlockServiceStub(channels.channel("127.0.0.1:50051"))
        >>> response = await stub.GetBlock(GetBlockRequest(block_id=block_id))
    """

    def __init__(self, *, local: LocalServers | None = None, **settings: Any) -> None:
        """Reads the files of keys and certificates. Nothing connects before the first call.

        Args:
            local: the servers of this process, which are called without a connection.
            settings: see `OutgoingCalls`.
        """
        super().__init__(**settings)
        self.local = local

    def channel(self, target: str) -> "Channel":
        """Returns the channel to `target` for generated stubs.

        Args:
            target: `host:port`, `unix:path` or `dns:///name:port`; after `tls://`, the connection is always encrypted.
        """
        known = self._channels.get(target)
        if known is None:
            self.warn_of_plain_token(target)
            known = self._channels[target] = Channel(target, self)
        return known

    async def close(self) -> None:
        """Closes all channels and cancels their running calls."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()


class Channel(grpc.aio.Channel):
    """A channel for generated stubs. It has one gRPC channel per service, because the retry policy is per service."""

    def __init__(self, target: str, channels: Channels) -> None:
        self.channels = channels
        self._target = target
        self._connections = Connections(target, channels.tls)

    def _method(
        self,
        kind: str,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """Returns a callable from a request, or an iterator of them, to a response, or an iterator of them."""
        of = _Streaming if kind.endswith("stream") else _Single
        return of(self, kind, method, request_serializer, response_deserializer)

    unary_unary = partialmethod(_method, "unary_unary")
    unary_stream = partialmethod(_method, "unary_stream")
    stream_unary = partialmethod(_method, "stream_unary")
    stream_stream = partialmethod(_method, "stream_stream")

    def inner(self, kind: str, method: str, serialize: Any, parse: Any) -> Any:
        """Returns what calls a method without the work of this module: in this process if it has the server."""
        if kind.startswith("unary"):
            serialize = adding_request_id(method, serialize)

        def connect() -> Any:
            return self._connections.callable(method, lambda channel: getattr(channel, kind)(method, serialize, parse))

        if self.channels.local is None:
            return connect()
        return LocalMethod(self.channels.local, self._target, kind, method, (serialize, parse), connect)

    async def close(self, grace: float | None = None) -> None:
        """Closes the gRPC channels."""
        await self._connections.close(grace)

    async def __aenter__(self) -> "Channel":
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


class _Method:
    """A method of a channel. What calls it is built at the first call: a stub has all methods of its service."""

    def __init__(self, channel: "Channel", kind: str, method: str, serialize: Any, parse: Any) -> None:
        self._channel = channel
        self._channels = channel.channels
        self._method = method
        self._parts = kind, method, serialize, parse

    @cached_property
    def _inner(self) -> Any:
        return self._channel.inner(*self._parts)

    @cached_property
    def _audience(self) -> str:
        return self._channels.audience(self._method)


class _Single(_Method):
    """A method with one response."""

    async def __call__(self, request: Any, *, timeout: float | None = None, **options: Any) -> Any:  # noqa: ASYNC109
        channels = self._channels
        metadata = (*channels.metadata(self._audience), *(options.pop("metadata", None) or ()))
        await async_failpoint("call.before", self._method)
        try:
            response = await self._inner(
                request, timeout=bounded(timeout or channels.deadline), metadata=metadata, **options
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, channels.known) from error
        await async_failpoint("call.after", self._method)
        return response


class _Streaming(_Method):
    """A method with a stream of responses."""

    def __call__(self, request: Any, *, timeout: float | None = None, **options: Any) -> "Stream":
        channels = self._channels
        metadata = (*channels.metadata(self._audience), *(options.pop("metadata", None) or ()))
        seconds = bounded(timeout or STREAM_DEADLINE_SECONDS)
        return Stream(self._inner(request, timeout=seconds, metadata=metadata, **options), channels.known)


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
