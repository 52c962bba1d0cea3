"""Why a service cannot be reached over TLS, in the words of one line: gRPC reports an unreachable service only."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Final

from mnemesh_kit.services import Protocol, service
from mnemesh_kit.tls.credentials import PREFIX, SCHEME, ClientTls, TlsSettings, host_of

_SECONDS: Final = 5.0


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
        return f"{address} expects TLS. Set {PREFIX}_CA_FILE." if speaks_tls else None
    error = await _handshake(address, _verified(settings), settings.server_name or host_of(address).strip("[]"))
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message.rstrip(".")
        return f"{address} has a certificate that is not accepted: {reason}. Check {PREFIX}_CA_FILE."
    if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return f"{address} does not use TLS. Set {PREFIX}_CERT_FILE of the service."
    if isinstance(error, (ssl.SSLError, _ClosedAfterHandshake)):
        return f"{address} does not accept the certificate of this client. Check {PREFIX}_CERT_FILE."
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
