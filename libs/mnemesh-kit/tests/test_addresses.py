"""Public and private addresses."""

import ipaddress

import pytest
from mnemesh_kit.network import is_public


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("10.1.2.3", False),
        ("100.64.0.1", False),
        ("224.0.0.1", False),
        ("fe80::1", False),
        ("fd00::1", False),
        ("::ffff:10.0.0.1", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b:1::808:808", False),
        ("::127.0.0.1", False),
        ("::8.8.8.8", False),
        ("3fff::1", False),
        ("64:ff9b::808:808", True),
    ],
)
def test_addresses_are_classified_as_public_or_private(address: str, *, expected: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is expected
