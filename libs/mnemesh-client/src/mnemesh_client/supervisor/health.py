"""Whether a service answers: grpc.health.v1, as everybody else would ask."""

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
    """Waits until the service at `address` says that it serves; for ever, unless cancelled."""
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        while True:
            try:
                async for answer in stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True):
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise


async def status(address: str, seconds: float = 2.0) -> str:
    """What the service at `address` says: "SERVING", "NOT_SERVING", …; or the name of the error, as "UNAVAILABLE"."""
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=seconds)
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
