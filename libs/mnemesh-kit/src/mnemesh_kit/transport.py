"""The gRPC options of every server and channel of the mesh, and how a channel is opened."""

import time
from collections.abc import Callable
from typing import Any, Final

import grpc

from mnemesh_kit.retries import service_config, service_descriptor
from mnemesh_kit.tls.credentials import ClientTls

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
MAX_CONNECTION_CALLS: Final = 1_000
"""How many calls may be open on one connection."""
CONNECTION_AGE_MS: Final = 30_000
"""The age, up to a tenth more or less, at which a server asks a client to open another connection. The client looks up
the addresses of the name then, and so finds replicas that were added."""
OLD_CONNECTION_MS: Final = 3_600_000
"""How long open calls of a connection may continue after that: as long as the longest stream."""
HANDSHAKE_MS: Final = 10_000
"""How long a new connection may take until it can send calls."""

_SIZES: Final = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 64 * 1024),
)

MAX_OPEN_FILES: Final = 65_536

# A peer that hangs is detected within 12 s; without the ping timeout it takes 70 s.
_KEEPALIVE: Final = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.ping_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

# What a program has not read of a stream stays in the memory of its process. By default, gRPC lets a sender send more
# the slower the reads are: under load, a service held more than 100 MB of one upload.
_UNREAD: Final = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
)

CHANNEL_OPTIONS: Final = (
    *_SIZES,
    *_UNREAD,
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    *_KEEPALIVE,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 500),
    # By default, a client looks names up every 30 s at most.
    ("grpc.dns_min_time_between_resolutions_ms", 5_000),
    ("grpc.enable_retries", 1),
    # Otherwise gRPC connects through http_proxy, also to this machine and to the other services.
    ("grpc.enable_http_proxy", 0),
)


def server_options(max_request_bytes: int) -> tuple[tuple[str, int], ...]:
    """Returns the options of a server whose largest request has `max_request_bytes` bytes."""
    return (
        *_SIZES,
        *_UNREAD,
        ("grpc.max_receive_message_length", max_request_bytes),
        *_KEEPALIVE,
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        # A client with more open calls waits. Other clients are not affected.
        ("grpc.max_concurrent_streams", MAX_CONNECTION_CALLS),
        ("grpc.max_connection_age_ms", CONNECTION_AGE_MS),
        ("grpc.max_connection_age_grace_ms", OLD_CONNECTION_MS),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.max_allowed_incoming_connections", _max_connections()),
        # Compressed requests are refused: 60 KB could become 64 MB before the size is checked. Bit 0 is "identity".
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # Otherwise two processes could share a port, and each would get half of the calls.
        ("grpc.so_reuseport", 0),
    )


def _max_connections() -> int:
    """Returns how many connections a server accepts: the other half of the files is for stores and other services."""
    import resource  # noqa: PLC0415 - clients import this module on systems that do not have it

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_OPEN_FILES // 2 if files == resource.RLIM_INFINITY else min(files, MAX_OPEN_FILES) // 2


def raise_open_files() -> None:
    """Raises the number of files and connections that this process may have open to what the system allows."""
    import resource  # noqa: PLC0415 - clients import this module on systems that do not have it

    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if most == resource.RLIM_INFINITY else min(most, MAX_OPEN_FILES)
    if files != resource.RLIM_INFINITY and files < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


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
