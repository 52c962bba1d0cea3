"""The health of a server as its callers see it: over gRPC, and over HTTP with GET /readyz, which needs no token."""

import asyncio
import json
import ssl
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

READY_PATH: Final = "/readyz"
VERSION_PATH: Final = "/livez"
_LARGEST_ANSWER: Final = 64 * 1024


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


async def http_status(address: str, seconds: float) -> str:
    """Returns SERVING if the service at `host:port` is ready, NOT_SERVING if it answers otherwise, or UNAVAILABLE."""
    try:
        status, _ = await asyncio.wait_for(_get(address, READY_PATH), seconds)
    except (OSError, TimeoutError, ValueError):
        return "UNAVAILABLE"
    return "SERVING" if status == 200 else "NOT_SERVING"


async def http_version(address: str, seconds: float) -> str:
    """Returns the version that the service at `host:port` reports; "" if it reports none.

    Raises:
        OSError: nothing answers in time.
    """
    try:
        _, body = await asyncio.wait_for(_get(address, VERSION_PATH), seconds)
        answer: Any = json.loads(body)
        return str(answer["version"])
    except (ValueError, KeyError, TypeError):
        return ""


async def _get(address: str, path: str) -> tuple[int, bytes]:
    """Returns the status and the body of an answer, over HTTP, or over TLS if the server expects it."""
    try:
        return await _request(address, path, None)
    except ConnectionRefusedError:
        raise  # A server that begins to listen now would receive the attempt below.
    except (ConnectionError, ValueError):
        # The request contains no secret, and the certificate may be for another name.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return await _request(address, path, context)


async def _request(address: str, path: str, tls: ssl.SSLContext | None) -> tuple[int, bytes]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=tls)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read(_LARGEST_ANSWER)).partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 "):
            raise ValueError("not HTTP")
        return int(head.split(b" ", 2)[1]), body or await reader.read(_LARGEST_ANSWER)
    finally:
        writer.close()
