"""Certificates, keys and authorities in PEM files: reading them, and what is wrong with them in one line."""

from __future__ import annotations

import base64
import re
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mnemesh_kit.config import ConfigError
from mnemesh_kit.tls.der import CertificateFields, certificate_fields

_DAY: Final = 86_400.0
_CERTIFICATE: Final = re.compile(
    rb"-----BEGIN (?:X509 )?CERTIFICATE-----(.+?)-----END (?:X509 )?CERTIFICATE-----", re.S
)
_OTHER_KEY: Final = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH")


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
    cert, key = f"{prefix}_CERT_FILE", f"{prefix}_KEY_FILE"
    if key_file is None:
        raise ConfigError(f"{key} must be set with {cert}.")
    chain, key_text = _read(cert_file, cert), _read(key_file, key)
    leaf = _certificates(chain, cert_file, cert)[0]
    _require_key(cert_file, key_file, cert, key)
    now = time.time()
    begins, ends = leaf.begins.timestamp(), leaf.ends.timestamp()
    if not begins <= now < ends:
        problem = "has expired on" if ends <= now else "is not valid before"
        limit = leaf.ends if ends <= now else leaf.begins
        raise ConfigError(f"{cert} {cert_file} {problem} {limit:%Y-%m-%d %H:%M} UTC. Replace it.")
    return Certificate(chain, key_text, leaf.names, begins, ends)


def read_authorities(ca_file: str, setting: str) -> bytes:
    """Returns a PEM file of authorities.

    Raises:
        ConfigError: the file cannot be read, contains no certificate, or only expired ones.
    """
    text = _read(ca_file, setting)
    if all(authority.ends.timestamp() <= time.time() for authority in _certificates(text, ca_file, setting)):
        raise ConfigError(f"{setting} {ca_file} contains expired certificates only. Replace it.")
    return text


def _read(path: str, setting: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting} {path} cannot be read: {error.strerror}.") from error


def _certificates(text: bytes, path: str, setting: str) -> list[CertificateFields]:
    try:
        found = [base64.b64decode(body, validate=False) for body in _CERTIFICATE.findall(text)]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for der in found:
            context.load_verify_locations(cadata=der)  # OpenSSL parses all of it
        if found:
            return [certificate_fields(der) for der in found]
    except (ValueError, StopIteration, ssl.SSLError) as error:
        raise ConfigError(f"{setting} {path} contains no certificate in PEM form.") from error
    raise ConfigError(f"{setting} {path} contains no certificate in PEM form.")


def _require_key(cert_file: str, key_file: str, cert: str, key: str) -> None:
    """Raises ConfigError if a file is not the key of the certificate."""
    asked = []

    def refuse_password() -> str:
        asked.append(key_file)
        return ""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # which keys are long enough is for the other end to say
    try:
        context.load_cert_chain(Path(cert_file).expanduser(), Path(key_file).expanduser(), refuse_password)
    except (OSError, ValueError) as error:
        if asked:
            raise ConfigError(f"{key} {key_file} is encrypted. Use a key without a password.") from error
        if isinstance(error, ssl.SSLError) and error.reason in _OTHER_KEY:
            raise ConfigError(f"{key} {key_file} is not the key of the certificate {cert_file} ({cert}).") from error
        raise ConfigError(f"{key} {key_file} contains no private key in PEM form.") from error
