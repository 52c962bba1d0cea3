"""The few fields of an X.509 certificate (RFC 5280) that a process reports: its validity and its names."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

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
