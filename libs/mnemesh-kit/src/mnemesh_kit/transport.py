"""The gRPC options of every server and channel of the mesh."""

from __future__ import annotations

from typing import Final

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024

_SIZES: Final = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
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

CHANNEL_OPTIONS: Final = (
    *_SIZES,
    *_KEEPALIVE,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_retries", 1),
)

SERVER_OPTIONS: Final = (
    *_SIZES,
    *_KEEPALIVE,
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    # Otherwise two processes could share a port, and each would get half of the calls.
    ("grpc.so_reuseport", 0),
)
