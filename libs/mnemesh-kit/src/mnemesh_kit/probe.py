"""The health of a service as an exit code, for container health checks: `python -m mnemesh_kit.probe [host:port]`.

MNEMESH_SERVICE names the service; without it, the service is one over gRPC. With the variables of TLS, the certificate
in them is that of the service, which runs on this machine.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from mnemesh_kit.config import ConfigError
from mnemesh_kit.http_health import http_status
from mnemesh_kit.services import SERVICES, Protocol
from mnemesh_kit.tls.certificates import read_certificate
from mnemesh_kit.tls.settings import PREFIX, TlsSettings

SECONDS: Final = 3.0


def main(arguments: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Returns 0 if the target is SERVING. Otherwise prints its state on stderr and returns 1.

    Args:
        arguments: the target `host:port`; if it is missing, the port MNEMESH_PORT on this machine.
        env: the environment.
    """
    target = arguments[0] if arguments else f"127.0.0.1:{env.get('MNEMESH_PORT', '')}"
    name = env.get("MNEMESH_SERVICE")
    over_http = any(spec.name == name and spec.protocol is Protocol.HTTP for spec in SERVICES)
    try:
        status = asyncio.run(http_status(target, SECONDS) if over_http else _own_status(target, name, env))
    except ConfigError as error:
        status = f"not checked: {error}"
    if status == "SERVING":
        return 0
    print(f"mnemesh: {target} is {status}", file=sys.stderr)  # noqa: T201  (the output of the health check)
    return 1


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


async def _own_status(target: str, name: str | None, env: Mapping[str, str]) -> str:
    """Returns the status of the service whose settings are in `env`."""
    async with _own_channel(target, name, env) as channel:
        return await health_status(channel, SECONDS)


def _own_channel(target: str, name: str | None, env: Mapping[str, str]) -> grpc.aio.Channel:
    """Returns a channel to a service that has the certificate of this process.

    The certificate itself is trusted, by any of its names: it need not be for 127.0.0.1.
    """
    settings = TlsSettings.from_env(env, name or "client")
    if settings.cert_file is None:
        return grpc.aio.insecure_channel(target)
    own = read_certificate(settings.cert_file, settings.key_file, PREFIX)
    options = [("grpc.ssl_target_name_override", own.names[0].replace("*", "any"))] if own.names else []
    return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(own.chain, own.key, own.chain), options=options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
