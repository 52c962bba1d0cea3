"""Whether a service serves, as an exit code: `python -m mnemesh_kit.probe [host:port]`, for container health checks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SECONDS: Final = 3.0


def main(arguments: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """0 if the target says SERVING; else 1, with what it said instead on stderr.

    The target is the first argument; without one, this machine at MNEMESH_PORT.
    """
    target = arguments[0] if arguments else f"127.0.0.1:{env.get('MNEMESH_PORT', '')}"
    answer = state(target)
    if answer == "SERVING":
        return 0
    print(f"mnemesh: {target} is {answer}", file=sys.stderr)  # noqa: T201  (for whoever reads the health check's output)
    return 1


def state(target: str) -> str:
    """The health that a server tells of itself, or the name of the code with which the question failed."""
    with grpc.insecure_channel(target) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        except grpc.RpcError as error:
            return str(error.code().name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
