"""Health checks of services: over grpc.health.v1, or over HTTP, as `ServiceSpec.protocol` says."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from mnemesh_kit.http_health import http_status
from mnemesh_kit.outgoing import DEADLINE_SECONDS
from mnemesh_kit.probe import health_status as channel_status
from mnemesh_kit.services import Protocol, service
from mnemesh_kit.tls.credentials import ClientTls, TlsSettings
from mnemesh_kit.transport import CHANNEL_OPTIONS

_POLL_SECONDS: Final = 0.05

_OPTIONS = (
    *(option for option in CHANNEL_OPTIONS if "reconnect_backoff" not in option[0]),
    ("grpc.initial_reconnect_backoff_ms", 50),
    # This is the time limit of an attempt to connect. A refused connection is tried again after the other delays.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 250),
)


HEALTH_TEXTS: Final = {
    "SERVING": "serving",
    "NOT_SERVING": "not ready",
    "UNAVAILABLE": "not reachable",
    "DEADLINE_EXCEEDED": "too slow",
    "UNIMPLEMENTED": "unknown",
    "SERVICE_UNKNOWN": "unknown",
    "UNAUTHENTICATED": "refused",
    "PERMISSION_DENIED": "refused",
}
"""The statuses of services as words for people."""


async def wait_until_ready(name: str, address: str, tls: TlsSettings | None = None) -> None:
    """Waits until the service with this name, at `address`, is ready, without a time limit."""
    if service(name).protocol is Protocol.GRPC:
        return await wait_until_serving(address, tls)
    while await http_status(address, 5.0) != "SERVING":  # noqa: ASYNC110  (another process becomes ready)
        await asyncio.sleep(_POLL_SECONDS)
    return None


async def service_status(
    name: str, address: str, timeout_seconds: float = DEADLINE_SECONDS, tls: TlsSettings | None = None
) -> str:
    """Returns the health status of the service with this name, also at the address of a server that forwards its calls.

    The values are those of `health_status`.
    """
    if service(name).protocol is Protocol.GRPC:
        return await health_status(address, timeout_seconds, tls, service(name).proto_services[0])
    return await http_status(address, timeout_seconds)


async def wait_until_serving(address: str, tls: TlsSettings | None = None) -> None:
    """Waits until the service at `address` reports SERVING, without a time limit.

    Raises:
        grpc.aio.AioRpcError: the health service returned an error other than UNAVAILABLE.
    """
    async with ClientTls(tls).open(address, _OPTIONS) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        while True:
            try:
                async for response in stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True):
                    if response.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise


async def health_status(
    address: str, timeout_seconds: float = 5.0, tls: TlsSettings | None = None, proto_service: str = ""
) -> str:
    """Returns the health status of the server at `address`, or of one of its gRPC services.

    Returns:
        "SERVING", "NOT_SERVING" or another status of grpc.health.v1; or the name of the gRPC status code of a failed
        check, for example "UNAVAILABLE".
    """
    async with ClientTls(tls).open(address, _OPTIONS) as channel:
        return await channel_status(channel, timeout_seconds, proto_service)
