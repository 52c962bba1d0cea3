"""Certificates, keys and authorities in PEM files: reading them, and what is wrong with them in one line."""

import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from mnemesh_kit.config import ConfigError

_DAY: Final = 86_400.0
_OTHER_KEY: Final = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH")


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate chain with its key."""

    chain: bytes
    key: bytes
    names: tuple[str, ...]
    """The DNS names, then the addresses, that the certificate is for."""
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
    _loaded(chain, cert_file, cert)
    _require_key(cert_file, key_file, cert, key)
    begins, ends, names = _fields(chain, cert_file, cert)
    now = time.time()
    if not begins <= now < ends:
        problem, limit = ("has expired on", ends) if ends <= now else ("is not valid before", begins)
        at = datetime.fromtimestamp(limit, UTC)
        raise ConfigError(f"{cert} {cert_file} {problem} {at:%Y-%m-%d %H:%M} UTC. Replace it.")
    return Certificate(chain, key_text, names, begins, ends)


def read_authorities(ca_file: str, setting: str) -> bytes:
    """Returns a PEM file of authorities.

    Raises:
        ConfigError: the file cannot be read, contains no certificate, or only expired ones.
    """
    text = _read(ca_file, setting)
    ends = [ssl.cert_time_to_seconds(str(each["notAfter"])) for each in _loaded(text, ca_file, setting).get_ca_certs()]
    if ends and max(ends) <= time.time():
        raise ConfigError(f"{setting} {ca_file} contains expired certificates only. Replace it.")
    return text


def _read(path: str, setting: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting} {path} cannot be read: {error.strerror}.") from error


def _loaded(text: bytes, path: str, setting: str) -> ssl.SSLContext:
    """Returns a context with the certificates of a PEM file. Raises ConfigError if it contains none, or a wrong one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=text.decode("ascii", "ignore"))
    except (ValueError, ssl.SSLError) as error:
        raise ConfigError(f"{setting} {path} contains no certificate in PEM form.") from error
    return context


def _fields(chain: bytes, path: str, setting: str) -> tuple[float, float, tuple[str, ...]]:
    """Returns begin and end of the first certificate, in seconds since the epoch, and its names.

    A client alone comes without cryptography. Its servers then tell it that its certificate is not valid at this time.
    """
    try:
        from cryptography import x509  # noqa: PLC0415 -- clients do not need it
    except ModuleNotFoundError:
        return 0.0, float("inf"), ()
    try:
        leaf = x509.load_pem_x509_certificate(chain)
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        found = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    except x509.ExtensionNotFound:
        found = []
    except ValueError as error:
        raise ConfigError(f"{setting} {path} contains no certificate in PEM form.") from error
    return leaf.not_valid_before_utc.timestamp(), leaf.not_valid_after_utc.timestamp(), tuple(found)


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
