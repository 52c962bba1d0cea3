"""The health check of containers: a process whose exit code is the result."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from mnemesh_kit.config import ServerConfig
from mnemesh_kit.server import Assembly, RunningServer


async def probe(*arguments: str, port: str = "") -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "mnemesh_kit.probe",
        *arguments,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "MNEMESH_PORT": port},
    )
    _, stderr = await process.communicate()
    return process.returncode, stderr.decode()


async def test_serving_service_passes_by_address_and_by_port(tmp_path: Path) -> None:
    key_file = tmp_path / "keys"
    key_file.write_text("k" * 32)
    server = RunningServer()
    # The service requires tokens, but health checks have none.
    config = ServerConfig(host="0.0.0.0", auth_key_file=str(key_file))
    address = await server.start(Assembly(name="any", servicers=[], service_names=[]), config)
    port = address.rpartition(":")[2]
    try:
        assert await probe(f"127.0.0.1:{port}") == (0, "")
        assert await probe(port=port) == (0, "")
    finally:
        await server.stop()
    code, stderr = await probe(f"127.0.0.1:{port}")
    assert (code, stderr) == (1, f"mnemesh: 127.0.0.1:{port} is UNAVAILABLE\n")


@pytest.mark.parametrize("state", ["NOT_SERVING", "UNKNOWN"])
async def test_service_that_is_not_serving_fails(state: str) -> None:
    servicer = health.aio.HealthServicer()
    await servicer.set("", health_pb2.HealthCheckResponse.ServingStatus.Value(state))
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        assert await probe(f"127.0.0.1:{port}") == (1, f"mnemesh: 127.0.0.1:{port} is {state}\n")
    finally:
        await server.stop(None)
