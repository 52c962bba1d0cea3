"""Health checks of services: over grpc.health.v1, or over HTTP, as `ServiceSpec.protocol` says."""

import asyncio
import ssl
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from mnemesh_kit.config import TLS_PREFIX, TlsSettings
from mnemesh_kit.health import health_status as channel_status
from mnemesh_kit.health import http_status
from mnemesh_kit.outgoing import DEADLINE_SECONDS
from mnemesh_kit.services import Protocol, service
from mnemesh_kit.tls.credentials import SCHEME, ClientTls, host_of
from mnemesh_kit.transport import CHANNEL_OPTIONS

_SECONDS: Final = 5.0

_POLL_SECONDS: Final = 0.05
HEALTH_TEXTS: Final = {
    "SERVING": "serving",
    "NOT_SERVING": "not ready",
    "UNAVAILABLE": "not reachable",
    "DEADLINE_EXCEEDED": "too slow",
    "UNIMPLEMENTED": "unknown",
    "SERVICE_UNKNOWN": "unknown",
    "UNAUTHENTICATED": "refused",
    "PERMISSION_DENIED": "refused",
}
"""The statuses of services as words for people."""


async def handshake_problem(name: str, address: str, settings: TlsSettings) -> str | None:
    """Returns what keeps a client with these settings from a TLS connection to a service.

    Args:
        name: the service. One over HTTP has no such problem: its certificate is not checked.
        address: its address, `host:port`.
        settings: the files of the client.

    Returns:
        One sentence that names the setting to check; None if TLS is not the problem, or nothing answers.
    """
    if address.startswith("unix:") or service(name).protocol is not Protocol.GRPC:
        return None
    if not ClientTls(settings).encrypts(address):
        error = await _handshake(address, _unverified(), None)
        speaks_tls = error is None or isinstance(error, _ClosedAfterHandshake)
        return f"{address} expects TLS. Set {TLS_PREFIX}_CA_FILE." if speaks_tls else None
    error = await _handshake(address, _verified(settings), settings.server_name or host_of(address).strip("[]"))
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message.rstrip(".")
        return f"{address} has a certificate that is not accepted: {reason}. Check {TLS_PREFIX}_CA_FILE."
    if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return f"{address} does not use TLS. Set {TLS_PREFIX}_CERT_FILE of the service."
    if isinstance(error, (ssl.SSLError, _ClosedAfterHandshake)):
        return f"{address} does not accept the certificate of this client. Check {TLS_PREFIX}_CERT_FILE."
    return None


class _ClosedAfterHandshake(Exception):
    """The server ended the connection after the client's part of the handshake, because of the client's certificate."""


async def _handshake(address: str, context: ssl.SSLContext, name: str | None) -> Exception | None:
    """Returns the error of a TLS connection; None if the server sends the first bytes of HTTP/2."""
    host, _, port = address.removeprefix(SCHEME).rpartition("/")[2].rpartition(":")
    bare = host.strip("[]")
    context.set_alpn_protocols(["h2"])
    writer = None
    try:
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_connection(bare, int(port), ssl=context, server_hostname=name or bare)
            return None if await reader.read(1) else _ClosedAfterHandshake()
    except (OSError, ValueError, TimeoutError) as error:
        return error if writer is None else _ClosedAfterHandshake()
    finally:
        if writer is not None:
            writer.close()


def _verified(settings: TlsSettings) -> ssl.SSLContext:
    ca_file = Path(settings.ca_file).expanduser() if settings.ca_file is not None else None
    context = ssl.create_default_context(cafile=ca_file)
    if settings.cert_file is not None and settings.key_file is not None:
        context.load_cert_chain(Path(settings.cert_file).expanduser(), Path(settings.key_file).expanduser())
    return context


def _unverified() -> ssl.SSLContext:
    """Returns a context that only finds out whether a server speaks TLS. Nothing is sent over it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


_OPTIONS = (
    *(option for option in CHANNEL_OPTIONS if "reconnect_backoff" not in option[0]),
    ("grpc.initial_reconnect_backoff_ms", 50),
    # This is the time limit of an attempt to connect. A refused connection is tried again after the other delays.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 250),
)


async def wait_until_ready(name: str, address: str, tls: TlsSettings | None = None) -> None:
    """Waits until the service with this name, at `address`, is ready, without a time limit."""
    if service(name).protocol is Protocol.GRPC:
        return await wait_until_serving(address, tls)
    while await http_status(address, 5.0) != "SERVING":  # noqa: ASYNC110  (another process becomes ready)
        await asyncio.sleep(_POLL_SECONDS)
    return None


async def service_status(name: str, address: str, tls: TlsSettings | None = None) -> str:
    """Returns the health status of the service with this name, also at the address of a server that forwards its calls.

    The values are those of `health_status`.
    """
    if service(name).protocol is Protocol.GRPC:
        return await health_status(address, DEADLINE_SECONDS, tls, service(name).proto_services[0])
    return await http_status(address, DEADLINE_SECONDS)


async def wait_until_serving(address: str, tls: TlsSettings | None = None) -> None:
    """Waits until the service at `address` reports SERVING, without a time limit.

    Raises:
        grpc.aio.AioRpcError: the health service returned an error other than UNAVAILABLE.
    """
    async with ClientTls(tls).open(address, _OPTIONS) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        while True:
            try:
                async for response in stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True):
                    if response.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise


async def health_status(
    address: str, timeout_seconds: float = 5.0, tls: TlsSettings | None = None, proto_service: str = ""
) -> str:
    """Returns the health status of the server at `address`, or of one of its gRPC services.

    Returns:
        "SERVING", "NOT_SERVING" or another status of grpc.health.v1; or the name of the gRPC status code of a failed
        check, for example "UNAVAILABLE".
    """
    async with ClientTls(tls).open(address, _OPTIONS) as channel:
        return await channel_status(channel, timeout_seconds, proto_service)
