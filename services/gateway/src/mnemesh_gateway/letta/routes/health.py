"""Health and readiness."""

from __future__ import annotations

from typing import Final

import msgspec
from mnemesh.server.v1 import server_service_pb2
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.server_info import version_of
from starlette.responses import Response

from mnemesh_gateway.letta.operations import Call, NoQuery, Operations, json_response

operations = Operations()
_VERSION: Final = version_of("mnemesh-gateway")
_READY_SECONDS: Final = 2.0


class Health(msgspec.Struct):
    """The status of the gateway or of the mesh. `version` is the version of mnemesh."""

    version: str
    status: str


@operations.get("/health/", result=Health)
async def check_health(_call: Call[NoQuery, None]) -> Health:
    """Tells that the gateway answers."""
    return Health(_VERSION, "ok")


@operations.get("/ready/", result=Health)
async def check_readiness(call: Call[NoQuery, None]) -> Health | Response:
    """Tells whether the mesh serves requests: 503 if not."""
    try:
        await call.mesh.server.GetServerInfo(server_service_pb2.GetServerInfoRequest(), timeout=_READY_SECONDS)
    except MnemeshError:
        return json_response(Health(_VERSION, "degraded"), 503)
    return Health(_VERSION, "ok")
