"""The gRPC options of every server and channel of the mesh."""

from __future__ import annotations

from typing import Final

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
MAX_CONNECTION_CALLS: Final = 1_000
"""How many calls may be open on one connection."""

_SIZES: Final = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 64 * 1024),
)

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
    ("grpc.enable_retries", 1),
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
        # Compressed requests are refused: 60 KB could become 64 MB before the size is checked. Bit 0 is "identity".
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # Otherwise two processes could share a port, and each would get half of the calls.
        ("grpc.so_reuseport", 0),
    )
