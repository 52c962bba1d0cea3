"""Certificates, keys and authorities in PEM files: reading them, and what is wrong with them in one line."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mnemesh_kit.config import ConfigError

if TYPE_CHECKING:  # it takes 70 ms, which a process without TLS does not need
    from cryptography import x509

_DAY: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate chain with its key."""

    chain: bytes
    key: bytes
    names: tuple[str, ...]
    """The DNS names and addresses that the certificate is for."""
    begins: float
    """The time from which it is valid, in seconds since the epoch."""
    ends: float
    """The time at which it expires."""

    @property
    def days_left(self) -> float:
        """The days until it expires."""
        return round((self.ends - time.time()) / _DAY, 2)

    @property
    def is_ending(self) -> bool:
        """True in the last fifth of its lifetime, when it should have been replaced."""
        return self.ends - time.time() < (self.ends - self.begins) / 5


def read_certificate(cert_file: str, key_file: str | None, prefix: str) -> Certificate:
    """Returns the certificate in a PEM file, with its key.

    Args:
        cert_file: the chain; the certificate of the process is its first one.
        key_file: the key, without a password.
        prefix: the settings are `<prefix>_CERT_FILE` and `<prefix>_KEY_FILE` in errors.

    Raises:
        ConfigError: a file is missing or wrong, the key is not that of the certificate, or the certificate is not valid
            at this time.
    """
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        Encoding,
        PublicFormat,
        load_pem_private_key,
    )

    cert, key = f"{prefix}_CERT_FILE", f"{prefix}_KEY_FILE"
    if key_file is None:
        raise ConfigError(f"{key} must be set with {cert}.")
    chain, key_text = _read(cert_file, cert), _read(key_file, key)
    leaf = _certificates(chain, cert_file, cert)[0]
    try:
        private = load_pem_private_key(key_text, None)
    except TypeError as error:
        raise ConfigError(f"{key} {key_file} is encrypted. Use a key without a password.") from error
    except Exception as error:  # the parser raises many kinds of errors
        raise ConfigError(f"{key} {key_file} contains no private key in PEM form.") from error
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*form) != leaf.public_key().public_bytes(*form):
        raise ConfigError(f"{key} {key_file} is not the key of the certificate {cert_file} ({cert}).")
    begins, ends = _validity(leaf)
    now = time.time()
    if not begins <= now < ends:
        problem = "has expired on" if ends <= now else "is not valid before"
        limit = leaf.not_valid_after_utc if ends <= now else leaf.not_valid_before_utc
        raise ConfigError(f"{cert} {cert_file} {problem} {limit:%Y-%m-%d %H:%M} UTC. Replace it.")
    return Certificate(chain, key_text, _names(leaf), begins, ends)


def read_authorities(ca_file: str, setting: str) -> bytes:
    """Returns a PEM file of authorities.

    Raises:
        ConfigError: the file cannot be read, contains no certificate, or only expired ones.
    """
    text = _read(ca_file, setting)
    if all(_validity(authority)[1] <= time.time() for authority in _certificates(text, ca_file, setting)):
        raise ConfigError(f"{setting} {ca_file} contains expired certificates only. Replace it.")
    return text


def _read(path: str, setting: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting} {path} cannot be read: {error.strerror}.") from error


def _certificates(text: bytes, path: str, setting: str) -> list[x509.Certificate]:
    from cryptography import x509  # noqa: PLC0415

    try:
        return x509.load_pem_x509_certificates(text)
    except Exception as error:  # the parser raises many kinds of errors
        raise ConfigError(f"{setting} {path} contains no certificate in PEM form.") from error


def _validity(certificate: x509.Certificate) -> tuple[float, float]:
    return certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    from cryptography import x509  # noqa: PLC0415

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    addresses = [str(address) for address in found.get_values_for_type(x509.IPAddress)]
    return (*found.get_values_for_type(x509.DNSName), *addresses)
