"""The settings of TLS for one end of gRPC connections."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from mnemesh_kit.config import ServerConfig

PREFIX: Final = "MNEMESH_GRPC_TLS"
"""The prefix of the variables of these settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The PEM files of a process. Without any of them, its connections are not encrypted."""

    cert_file: str | None = None
    """The certificate chain of this process. Servers present it to callers, callers to servers that require one."""
    key_file: str | None = None
    """The private key of the certificate."""
    ca_file: str | None = None
    """The authorities that sign the certificates of the servers. Unset: the public authorities."""
    client_ca_file: str | None = None
    """Servers only: the authorities that sign the certificates of callers. If set, each caller must present one."""
    server_name: str | None = None
    """Callers only: the name that the certificates of servers must have. Unset: the host of the address."""

    @property
    def is_configured(self) -> bool:
        """Returns whether connections use TLS."""
        return self.cert_file is not None or self.ca_file is not None

    @classmethod
    def of(cls, config: ServerConfig) -> TlsSettings:
        """Returns the settings of a service."""
        return cls(**{field.name: getattr(config, f"grpc_tls_{field.name}") for field in fields(cls)})

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ, process: str = "client") -> TlsSettings:
        """Returns the settings of a caller: MNEMESH_<PROCESS>_GRPC_TLS_<FIELD>, or else MNEMESH_GRPC_TLS_<FIELD>."""
        prefixes = (PREFIX.replace("_", f"_{process.upper()}_", 1), PREFIX)
        values = {
            field.name: next((env[name] for each in prefixes if env.get(name := f"{each}_{field.name.upper()}")), None)
            for field in fields(cls)
            if field.name != "client_ca_file"
        }
        return cls(**values)
