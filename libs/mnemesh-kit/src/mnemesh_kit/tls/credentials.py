"""TLS of clients: the credentials of channels, renewed with their files."""

import time
from collections.abc import Sequence
from typing import Any, Final

import grpc

from mnemesh_kit.config import TLS_PREFIX, ConfigError, TlsSettings
from mnemesh_kit.tls.certificates import read_authorities
from mnemesh_kit.tls.reloaded import CertificateFiles, Reloaded

SCHEME: Final = "tls://"
"""The prefix of an address that demands TLS, whatever the settings are."""
RECHECK_SECONDS: Final = 1.0
"""The shortest interval between two comparisons of the files with those in use. One takes 5 microseconds."""

_CONNECT_TIME: Final[tuple[str, Any]] = ("grpc.min_reconnect_backoff_ms", 5_000)
"""The time for a connection, handshake included: three round trips, and computation on a busy machine."""


class ClientTls:
    """Opens the channels of a process.

    Every channel uses TLS if the settings have a certificate or authorities, and one to an address `tls://…` does in
    any case. A channel never falls back to an unencrypted connection. Unix sockets are not encrypted: their file mode
    protects them.
    """

    def __init__(self, settings: TlsSettings | None = None, *, recheck_seconds: float = RECHECK_SECONDS) -> None:
        """Reads the files. Raises ConfigError if one is wrong."""
        self._settings = settings = settings or TlsSettings()
        if settings.cert_file is None and settings.key_file is not None:
            raise ConfigError(f"{TLS_PREFIX}_CERT_FILE must be set with {TLS_PREFIX}_KEY_FILE.")
        self._certificate = (
            CertificateFiles(settings.cert_file, settings.key_file, TLS_PREFIX) if settings.cert_file else None
        )
        self._authorities = Reloaded((settings.ca_file,), self._read_authorities)
        self._recheck_seconds = recheck_seconds
        self._checked = time.monotonic()
        self._credentials: Any = None
        self.generation = 0
        """The number of times that the files were replaced."""

    def encrypts(self, target: str) -> bool:
        """Returns whether a channel to `target` uses TLS."""
        if target.startswith(SCHEME):
            return True
        return self._settings.is_configured and not target.startswith("unix:")

    def open(self, target: str, options: Sequence[tuple[str, Any]] = ()) -> grpc.aio.Channel:
        """Returns a new channel to `target` with the newest files."""
        if not self.encrypts(target):
            return grpc.aio.insecure_channel(target, options=options)
        return grpc.aio.secure_channel(*self._secure(target, options))

    def open_sync(self, target: str, options: Sequence[tuple[str, Any]] = ()) -> grpc.Channel:
        """Returns a new channel like `open`, with which calls wait for their responses. Any thread may use it."""
        if not self.encrypts(target):
            return grpc.insecure_channel(target, options=options)
        return grpc.secure_channel(*self._secure(target, options))

    def _secure(self, target: str, options: Sequence[tuple[str, Any]]) -> tuple[str, grpc.ChannelCredentials, Any]:
        """Returns the address, the credentials and the options of a channel."""
        if self._credentials is None:
            # One object for all channels: gRPC shares connections among channels with the same credentials.
            self._credentials = self._create_credentials()
        name = self._settings.server_name
        own = [option for option in options if option[0] != _CONNECT_TIME[0]] + [_CONNECT_TIME]
        if name:
            own.append(("grpc.ssl_target_name_override", name))
        return target.removeprefix(SCHEME), self._credentials, own

    def refresh(self) -> int:
        """Compares the files with those in use, now and then. Returns the current `generation`."""
        now = time.monotonic()
        if now - self._checked >= self._recheck_seconds:
            self._checked = now
            changed = (self._certificate is not None and self._certificate.refresh(), self._authorities.refresh())
            if any(changed):
                self._credentials = None
                self.generation += 1
        return self.generation

    def _create_credentials(self) -> grpc.ChannelCredentials:
        certificate = self._certificate.current if self._certificate is not None else None
        if certificate is None:
            return grpc.ssl_channel_credentials(self._authorities.value)
        return grpc.ssl_channel_credentials(self._authorities.value, certificate.key, certificate.chain)

    def _read_authorities(self) -> bytes | None:
        ca_file = self._settings.ca_file
        return read_authorities(ca_file, f"{TLS_PREFIX}_CA_FILE") if ca_file is not None else None


def host_of(target: str) -> str:
    """Returns the host of a target: `blocks` of `tls://dns:///blocks:50051`. Of a Unix socket, the target."""
    if target.startswith("unix:"):
        return target
    host, separator, port = target.rpartition("/")[2].rpartition(":")
    return host if separator and port.isdecimal() else target.rpartition("/")[2]
