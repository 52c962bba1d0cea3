"""A private certificate authority in a directory, and the certificates that it signs for the services of a mesh."""

import ipaddress
import os
import shlex
import stat
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from mnemesh_kit.config import TLS_PREFIX, StartupError
from mnemesh_kit.services import SERVICE_NAMES

CLIENT: Final = "client"
CERTIFICATE_NAME: Final = "tls.crt"
KEY_NAME: Final = "tls.key"
CA_NAME: Final = "ca.crt"
CA_KEY_NAME: Final = "ca.key"
ENVIRONMENT_NAME: Final = "mnemesh.env"
_CA_DAYS: Final = 3650
_CLOCK_SKEW: Final = timedelta(minutes=5)
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")


def create_certificates(
    directory: Path, *, days: float, hosts: Sequence[str] = (), readable: bool = False
) -> list[str]:
    """Creates a certificate for each service and one for clients, and an authority if the directory has none.

    The directory gets `ca.crt`, `ca.key`, a folder for each service and for `client` with `tls.crt`, `tls.key` and
    `ca.crt`, and `mnemesh.env` with the settings that name these files. Existing certificates are replaced; running
    processes take the new ones.

    Args:
        directory: created with access for its owner only.
        days: the lifetime of the certificates.
        hosts: further names and addresses at which clients reach the services.
        readable: whether every user may read the folders of the services and the client. `ca.key` stays private.

    Returns:
        The names of the folders.

    Raises:
        StartupError: the directory cannot be written, or its authority cannot be used.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
        authority, authority_key = _authority(directory)
        names = (*SERVICE_NAMES, CLIENT)
        for name in names:
            own = () if name == CLIENT else (name, *_LOCAL, *hosts)
            certificate, key = _issue(name, own, days, authority, authority_key)
            folder = directory / name
            folder.mkdir(mode=0o700, exist_ok=True)
            folder.chmod(0o755 if readable else 0o700)
            mode = 0o644 if readable else 0o600
            _write(folder / CA_NAME, _pem(authority), mode)
            _write(folder / KEY_NAME, _key_pem(key), mode)
            _write(folder / CERTIFICATE_NAME, _pem(certificate), mode)
        _write(directory / ENVIRONMENT_NAME, _environment(directory.absolute()).encode(), 0o600)
    except OSError as error:
        raise StartupError(f"{error.filename or directory} cannot be written: {error.strerror}.") from error
    return list(names)


def _authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Returns the authority of the directory, which is created if there is none."""
    certificate_file, key_file = directory / CA_NAME, directory / CA_KEY_NAME
    if not certificate_file.exists() and not key_file.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _sign_authority(key)
        _write(key_file, _key_pem(key), 0o600)
        _write(certificate_file, _pem(certificate), 0o644)
        return certificate, key
    for file in (certificate_file, key_file):
        if not file.exists():
            raise StartupError(f"{file} is missing. Restore it, or choose an empty directory for a new authority.")
    try:
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        private = serialization.load_pem_private_key(key_file.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise StartupError(f"The authority in {directory} cannot be read: {error}.") from error
    if not isinstance(private, ec.EllipticCurvePrivateKey) or private.public_key() != certificate.public_key():
        raise StartupError(f"{key_file} is not the key of {certificate_file}.")
    if certificate.not_valid_after_utc <= datetime.now(UTC):
        raise StartupError(f"The authority {certificate_file} has expired. Choose an empty directory for a new one.")
    return certificate, private


def _sign_authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mnemesh private authority")])
    now = datetime.now(UTC)
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        _builder(name, name, key, now + timedelta(days=_CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


def _issue(
    name: str, hosts: Sequence[str], days: float, authority: x509.Certificate, authority_key: ec.EllipticCurvePrivateKey
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"mnemesh {name}")])
    ends = min(datetime.now(UTC) + timedelta(days=days), authority.not_valid_after_utc)
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
    builder = (
        _builder(subject, authority.subject, key, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    if hosts:
        names = x509.SubjectAlternativeName([_general_name(host) for host in dict.fromkeys(hosts)])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(authority_key, hashes.SHA256()), key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - _CLOCK_SKEW)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise StartupError(f"--host {host!r} is neither a host name nor an address.") from error


def _environment(directory: Path) -> str:
    """Returns the settings of a mesh on this machine, with a certificate for each process."""
    lines = [(f"{TLS_PREFIX}_{field}", directory / CA_NAME) for field in ("CA_FILE", "CLIENT_CA_FILE")]
    for name in (*SERVICE_NAMES, CLIENT):
        prefix = TLS_PREFIX.replace("_", f"_{name.upper()}_", 1)
        lines.append((f"{prefix}_CERT_FILE", directory / name / CERTIFICATE_NAME))
        lines.append((f"{prefix}_KEY_FILE", directory / name / KEY_NAME))
    return "".join(f"{variable}={shlex.quote(str(path))}\n" for variable, path in lines)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replaces a file at once, so that a process reads the earlier content or the new one."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)
    temporary.replace(path)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
