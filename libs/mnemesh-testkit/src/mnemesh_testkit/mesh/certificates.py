"""Mutual TLS of a mesh in tests: the certificates of `mnemesh certs create`, as settings of services and clients."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from mnemesh_cli.certificates import CLIENT, ENVIRONMENT_NAME, create_certificates
from mnemesh_kit.tls.credentials import PREFIX, TlsSettings

_FIELD: Final = PREFIX.removeprefix("MNEMESH_").lower()


def certificates(directory: Path) -> Path:
    """Creates certificates for every service and the client. Returns their directory."""
    create_certificates(directory, days=1)
    return directory


def tls_environment(directory: Path) -> dict[str, str]:
    """Returns the variables of a mesh with these certificates."""
    words = shlex.split((directory / ENVIRONMENT_NAME).read_text())
    return dict(word.split("=", 1) for word in words)


def tls_fields(directory: Path, service: str) -> dict[str, str]:
    """Returns the fields of a service's Config."""
    authority = str(directory / "ca.crt")
    own = {"ca_file": authority, "client_ca_file": authority, **_own_files(directory, service)}
    return {f"{_FIELD}_{name}": path for name, path in own.items()}


def client_tls(directory: Path) -> TlsSettings:
    """Returns the settings of a client."""
    return TlsSettings(ca_file=str(directory / "ca.crt"), **_own_files(directory, CLIENT))


def _own_files(directory: Path, name: str) -> dict[str, str]:
    return {f"{kind}_file": str(directory / name / f"tls.{end}") for kind, end in (("cert", "crt"), ("key", "key"))}
