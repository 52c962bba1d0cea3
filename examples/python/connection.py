"""The connection to mnemesh: address, TLS, token, retries. README.md lists the environment variables."""

import os
from collections import namedtuple
from pathlib import Path
from typing import Any

import grpc
from grpc.experimental import ChannelOptions

SERVICE_CONFIG = Path(__file__).resolve().parents[2] / "proto" / "service_config.json"

# Deadlines in seconds, for a busy laptop; docs/clients.md has those of a server.
READ = 30
WRITE = 60
TURN = 600


def connect() -> grpc.Channel:
    """Returns a channel for the stubs of all services: the orchestrator forwards the calls of the others."""
    options = [
        ("grpc.service_config", SERVICE_CONFIG.read_text()),  # gRPC repeats idempotent calls that fail with UNAVAILABLE
        ("grpc.max_receive_message_length", 64 * 1024 * 1024),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # Without it, a stream that begins while the server crashes can hang, whatever its deadline (grpcio 1.85.1).
        (ChannelOptions.SingleThreadedUnaryStream, 1),
    ]
    target = os.environ.get("MNEMESH_TARGET", "localhost:50050")
    authorities = _pem("CA")
    if authorities is None:
        channel = grpc.insecure_channel(target, options)
    else:
        credentials = grpc.ssl_channel_credentials(authorities, _pem("KEY"), _pem("CERT"))
        channel = grpc.secure_channel(target, credentials, options)
    token = os.environ.get("MNEMESH_TOKEN")
    return grpc.intercept_channel(channel, _Token(token)) if token else channel


def _pem(kind: str) -> bytes | None:
    path = os.environ.get(f"MNEMESH_GRPC_TLS_{kind}_FILE")
    return Path(path).read_bytes() if path else None


_FIELDS = ("method", "timeout", "metadata", "credentials", "wait_for_ready", "compression")


class _Details(namedtuple("_Details", _FIELDS), grpc.ClientCallDetails):
    """The details of a call, in the form that gRPC expects from an interceptor."""


class _Token(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Adds the token to the metadata of each call."""

    def __init__(self, token: str) -> None:
        self._header = ("authorization", f"Bearer {token}")

    def _call(self, continuation: Any, details: grpc.ClientCallDetails, request: Any) -> Any:
        values = {name: getattr(details, name, None) for name in _FIELDS}
        values["metadata"] = [*(values["metadata"] or ()), self._header]
        return continuation(_Details(**values), request)

    intercept_unary_unary = intercept_unary_stream = _call
