"""Health."""

from __future__ import annotations

from typing import Final

import msgspec
from mnemesh_kit.server_info import version_of

from mnemesh_gateway.letta.operations import Call, NoQuery, Operations

operations = Operations()
_VERSION: Final = version_of("mnemesh-gateway")


class Health(msgspec.Struct):
    """That the process answers. `version` is that of mnemesh."""

    version: str
    status: str


@operations.get("/health/", result=Health)
async def check_health(_call: Call[NoQuery, None]) -> Health:
    """Tells that the gateway answers."""
    return Health(_VERSION, "ok")
