"""Certificates, keys and authorities in PEM files: reading them, and what is wrong with them in one line."""

from __future__ import annotations

import base64
import ipaddress
import re
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from mnemesh_kit.config import ConfigError

_INTEGER: Final = 0x02
_OCTET_STRING: Final = 0x04
_OBJECT_ID: Final = 0x06
_UTC_TIME: Final = 0x17
_VERSION: Final = 0xA0
_EXTENSIONS: Final = 0xA3
_DNS_NAME: Final = 0x82
_IP_ADDRESS: Final = 0x87
_ALTERNATIVE_NAMES: Final = bytes((0x55, 0x1D, 0x11))
"""The object id 2.5.29.17."""
_LONG_LENGTH: Final = 0x80


@dataclass(frozen=True, slots=True)
class CertificateFields:
    """What is read from a certificate."""

    begins: datetime
    ends: datetime
    names: tuple[str, ...]
    """The DNS names, then the addresses."""


def certificate_fields(der: bytes) -> CertificateFields:
    """Returns the fields of a certificate in DER form.

    Raises:
        ValueError: the bytes are no certificate.
    """
    ((_, certificate),) = _elements(der)
    parts = list(_elements(next(_elements(certificate))[1]))
    if parts[0][0] == _VERSION:
        parts = parts[1:]
    if len(parts) < 6 or parts[0][0] != _INTEGER:  # serial, algorithm, issuer, validity, subject, key
        raise ValueError("the certificate lacks fields")
    begins, ends = (_time(tag, value) for tag, value in _elements(parts[3][1]))
    extensions = next((value for tag, value in parts if tag == _EXTENSIONS), None)
    return CertificateFields(begins, ends, _names(extensions) if extensions is not None else ())


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the tag and the content of each element."""
    at = 0
    while at < len(data):
        if at + 2 > len(data):
            raise ValueError("an element is cut off")
        tag, length = data[at], data[at + 1]
        at += 2
        if length & _LONG_LENGTH:
            size = length & ~_LONG_LENGTH
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if at + length > len(data):
            raise ValueError("an element is cut off")
        yield tag, data[at : at + length]
        at += length


def _time(tag: int, value: bytes) -> datetime:
    text = value.decode("ascii")
    if tag == _UTC_TIME:  # two digits of the year: 50 to 99 are of the 20th century
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _names(extensions: bytes) -> tuple[str, ...]:
    dns: list[str] = []
    addresses: list[str] = []
    for _, extension in _elements(next(_elements(extensions))[1]):
        parts = list(_elements(extension))
        if parts[0] != (_OBJECT_ID, _ALTERNATIVE_NAMES):
            continue
        value = next(content for tag, content in parts if tag == _OCTET_STRING)
        for tag, name in _elements(next(_elements(value))[1]):
            if tag == _DNS_NAME:
                dns.append(name.decode("ascii"))
            elif tag == _IP_ADDRESS:
                addresses.append(str(ipaddress.ip_address(name)))
    return (*dns, *addresses)


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
