"""What the synchronous client does differently from the asynchronous one, whose twin is `transport`."""

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partialmethod
from typing import Any, Final, ParamSpec, TypeVar, cast

import grpc
from grpc.experimental import ChannelOptions
from mnemesh_kit.errors import MnemeshError, from_rpc_error
from mnemesh_kit.outgoing import STREAM_DEADLINE_SECONDS, OutgoingCalls, adding_request_id, bounded
from mnemesh_kit.retries import service_config, service_descriptor
from mnemesh_kit.tls.credentials import ClientTls
from mnemesh_kit.transport import CHANNEL_OPTIONS, RETIRED_SECONDS

# gRPC's other kind of synchronous stream can hang if it has a retry policy and the server crashes while it begins:
# neither its deadline nor a cancellation ends it.
_UNHANGING: Final = (ChannelOptions.SingleThreadedUnaryStream, 1)


class Channels(OutgoingCalls["Channel"]):
    """The channels of a client: one per target, open until `close`."""

    def channel(self, target: str) -> "Channel":
        """Returns the channel to `target` for generated stubs; see `mnemesh_kit.channels.Channels.channel`."""
        known = self._channels.get(target)
        if known is None:
            self.warn_of_plain_token(target)
            known = self._channels.setdefault(target, Channel(target, self))
        return known

    def close(self) -> None:
        """Closes all channels and cancels their running calls."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()


class Channel(grpc.Channel):
    """A channel for generated stubs. It has one gRPC channel per service, because the retry policy is per service."""

    def __init__(self, target: str, channels: Channels) -> None:
        self._channels = channels
        self._connections = _Connections(target, channels.tls)

    def _method(
        self,
        kind: str,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """Returns a callable from a request, or an iterator of them, to a response, or an iterator of them.

        gRPC reads an iterator of requests in a thread.
        """
        unary = kind.startswith("unary")
        serializer = adding_request_id(method, request_serializer) if unary else request_serializer
        of = self._streaming if kind.endswith("stream") else self._single
        return of(method, lambda channel: getattr(channel, kind)(method, serializer, response_deserializer))

    unary_unary = partialmethod(_method, "unary_unary")
    unary_stream = partialmethod(_method, "unary_stream")
    stream_unary = partialmethod(_method, "stream_unary")
    stream_stream = partialmethod(_method, "stream_stream")

    def subscribe(self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: bool = False) -> None:
        """Calls back when the state of the connection changes."""
        self._connections.of("")[1].subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        """Ends what `subscribe` began."""
        self._connections.of("")[1].unsubscribe(callback)

    def close(self) -> None:
        """Closes the gRPC channels."""
        self._connections.close()

    def __enter__(self) -> "Channel":
        """Returns the channel itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the channel."""
        self.close()

    def _single(self, method: str, create: Callable[[grpc.Channel], Any]) -> Callable[..., Any]:
        callable_, channels = self._connections.callable(method, create), self._channels
        audience = channels.audience(method)

        def call(request: Any, *, timeout: float | None = None, **options: Any) -> Any:
            metadata = (*channels.metadata(audience), *(options.pop("metadata", None) or ()))
            seconds = bounded(timeout or channels.deadline)
            try:
                return callable_()(request, timeout=seconds, metadata=metadata, **options)
            except grpc.RpcError as error:
                raise from_rpc_error(error, channels.known) from error

        return call

    def _streaming(self, method: str, create: Callable[[grpc.Channel], Any]) -> Callable[..., Iterator[Any]]:
        callable_, channels = self._connections.callable(method, create), self._channels
        audience = channels.audience(method)

        def call(request: Any, *, timeout: float | None = None, **options: Any) -> Iterator[Any]:
            metadata = (*channels.metadata(audience), *(options.pop("metadata", None) or ()))
            seconds = bounded(timeout or STREAM_DEADLINE_SECONDS)
            return _responses(callable_()(request, timeout=seconds, metadata=metadata, **options), channels.known)

        return call


def _responses(call: Any, known: Mapping[str, type[MnemeshError]]) -> Iterator[Any]:
    """Yields the responses of a call. Closing the iterator early cancels the call."""
    try:
        yield from call
    except grpc.RpcError as error:
        raise from_rpc_error(error, known) from error
    finally:
        call.cancel()


class _Connections:
    """The gRPC channels to a target, which are opened when they are needed, and again when certificates change."""

    def __init__(self, target: str, tls: ClientTls) -> None:
        self._target = target
        self._tls = tls
        self._lock = threading.Lock()
        self._by_service: dict[str, grpc.Channel] = {}
        self._generation = tls.generation
        self._retired: list[tuple[float, grpc.Channel]] = []

    def callable(self, method: str, create: Callable[[grpc.Channel], Any]) -> Callable[[], Any]:
        """Returns a function that returns what calls a method, on a channel with the newest certificates."""
        service = method.split("/")[1]
        made: tuple[int, Any] = (-1, None)

        def newest() -> Any:
            nonlocal made
            generation, channel = self.of(service)
            if made[0] != generation:
                made = (generation, create(channel))
            return made[1]

        return newest

    def of(self, service: str) -> tuple[int, grpc.Channel]:
        """Returns the channel for the calls of a service, whose retry policy it has, and the generation of it."""
        with self._lock:
            generation = self._tls.refresh()
            if generation != self._generation:
                self._generation, now = generation, time.monotonic()
                # Calls are open on the channels with the earlier certificates.
                self._retired = [(since, each) for since, each in self._retired if now - since < RETIRED_SECONDS]
                self._retired += [(now, each) for each in self._by_service.values()]
                self._by_service = {}
            channel = self._by_service.get(service)
            if channel is None:
                policy = ("grpc.service_config", service_config(service_descriptor(service)))
                options = (*CHANNEL_OPTIONS, policy, _UNHANGING)
                channel = self._by_service[service] = self._tls.open_sync(self._target, options)
            return generation, channel

    def close(self) -> None:
        """Closes all channels."""
        with self._lock:
            channels = (*self._by_service.values(), *(each for _, each in self._retired))
            self._by_service, self._retired = {}, []
        for channel in channels:
            channel.close()


__all__ = ["Channel", "Channels", "closing", "in_thread", "sleep"]

P = ParamSpec("P")
T = TypeVar("T")

sleep: Final = time.sleep


def closing(stream: Iterable[T]) -> contextlib.closing[Generator[T, None, None]]:
    """Returns a context manager with the items of a stream. It ends the call when the block is left."""
    return contextlib.closing(cast("Generator[Any, None, None]", iter(stream)))


def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs what waits for a disk, in the thread of the caller."""
    return function(*args, **kwargs)
