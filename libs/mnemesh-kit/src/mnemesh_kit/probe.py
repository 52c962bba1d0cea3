"""The health of a server over gRPC, as its callers see it."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


async def health_status(channel: grpc.aio.Channel, seconds: float, proto_service: str = "") -> str:
    """Returns the health status of a server, or of one of its gRPC services.

    If the call fails, that is the name of its status code.
    """
    stub: Any = health_pb2_grpc.HealthStub(channel)
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=proto_service), timeout=seconds)
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
