"""Health checks of services over grpc.health.v1."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from mnemesh_kit.transport import CHANNEL_OPTIONS

_OPTIONS = (
    *(option for option in CHANNEL_OPTIONS if "reconnect_backoff" not in option[0]),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 250),
)


async def wait_until_serving(address: str) -> None:
    """Waits until the service at `address` reports SERVING, without a time limit.

    Raises:
        grpc.aio.AioRpcError: the health service returned an error other than UNAVAILABLE.
    """
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        while True:
            try:
                async for response in stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True):
                    if response.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise


async def health_status(address: str, timeout_seconds: float = 5.0) -> str:
    """Returns the health status of the service at `address`.

    Returns:
        "SERVING", "NOT_SERVING" or another status of grpc.health.v1; or the name of the gRPC status code of a failed
        check, for example "UNAVAILABLE".
    """
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            response = await stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_seconds)
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)
