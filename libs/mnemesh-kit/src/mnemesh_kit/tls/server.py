"""The credentials of a gRPC server."""

from typing import Any, Final

import grpc

from mnemesh_kit.config import TLS_PREFIX, ConfigError, TlsSettings
from mnemesh_kit.metrics import Gauge
from mnemesh_kit.tls.certificates import read_authorities
from mnemesh_kit.tls.reloaded import CertificateFiles, Reloaded, seconds_left

EXPIRY: Final = Gauge(
    "mnemesh_certificate_remaining_seconds",
    "Seconds until the first of the certificates that this process uses expires.",
    seconds_left,
)


class ServerTls:
    """The certificate of a server, and the authorities of its callers. Replaced files apply to the next handshake."""

    def __init__(self, settings: TlsSettings) -> None:
        """Reads the files. Raises ConfigError if one is wrong."""
        if settings.cert_file is None:
            raise ConfigError(
                f"{TLS_PREFIX}_CERT_FILE must be set with {TLS_PREFIX}_KEY_FILE and {TLS_PREFIX}_CLIENT_CA_FILE."
            )
        self._certificate = CertificateFiles(settings.cert_file, settings.key_file, TLS_PREFIX)
        self._client_ca_file = settings.client_ca_file
        self._authorities = Reloaded((settings.client_ca_file,), self._read_authorities)

    @classmethod
    def of(cls, settings: TlsSettings) -> "ServerTls | None":
        """Returns the credentials of a server with these settings; None if it has no TLS."""
        needed = (settings.cert_file, settings.key_file, settings.client_ca_file)
        return cls(settings) if any(file is not None for file in needed) else None

    def credentials(self) -> grpc.ServerCredentials:
        """Returns the credentials for `add_secure_port`."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(), self._fetch, require_client_authentication=self._client_ca_file is not None
        )

    def _fetch(self) -> Any:  # the stubs of grpc do not know of None
        """Returns what a handshake uses from now on; None if nothing has changed. gRPC calls it on its threads."""
        changed = (self._certificate.refresh(), self._authorities.refresh())
        return self._configuration() if any(changed) else None

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        certificate = self._certificate.current
        return grpc.ssl_server_certificate_configuration(
            [(certificate.key, certificate.chain)], self._authorities.value
        )

    def _read_authorities(self) -> bytes | None:
        if self._client_ca_file is None:
            return None
        return read_authorities(self._client_ca_file, f"{TLS_PREFIX}_CLIENT_CA_FILE")
