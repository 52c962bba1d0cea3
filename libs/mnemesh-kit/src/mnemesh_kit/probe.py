"""The health of a service as an exit code, for container health checks: `python -m mnemesh_kit.probe [host:port]`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SECONDS: Final = 3.0


def main(arguments: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Returns 0 if the target is SERVING. Otherwise prints its state on stderr and returns 1.

    Args:
        arguments: the target `host:port`; if it is missing, the port MNEMESH_PORT on this machine.
        env: the environment.
    """
    target = arguments[0] if arguments else f"127.0.0.1:{env.get('MNEMESH_PORT', '')}"
    status = health_status(target)
    if status == "SERVING":
        return 0
    print(f"mnemesh: {target} is {status}", file=sys.stderr)  # noqa: T201  (the output of the health check)
    return 1


def health_status(target: str) -> str:
    """Returns the health status that a server reports, or the name of the status code if the call fails."""
    with grpc.insecure_channel(target) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        except grpc.RpcError as error:
            return str(error.code().name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
