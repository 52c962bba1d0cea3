"""Grants of hosts."""

import ipaddress

import pytest
from mnemesh_sandbox.egress.policy import ANY_HOST, EgressPolicy, HostInvalid, grant_of, normalized_host, split_port


@pytest.mark.parametrize(
    ("granted", "host", "port", "expected"),
    [
        ("api.example.com", "api.example.com", 443, True),
        ("API.Example.COM.", "api.example.com", 80, True),
        ("api.example.com", "api.example.com", 8443, False),
        ("api.example.com", "example.com", 443, False),
        ("api.example.com", "evil-api.example.com", 443, False),
        ("api.example.com", "api.example.com.evil.org", 443, False),
        ("api.example.com:8443", "api.example.com", 8443, True),
        ("api.example.com:8443", "api.example.com", 443, False),
        ("*.example.com", "a.example.com", 443, True),
        ("*.example.com", "a.b.example.com", 443, True),
        ("*.example.com", "example.com", 443, False),
        ("*.example.com", "badexample.com", 443, False),
        ("*.example.com:81", "a.example.com", 81, True),
        ("bücher.example", "xn--bcher-kva.example", 443, True),
        ("192.0.2.7", "192.0.2.7", 443, True),
        ("[2001:DB8::1]:8080", "2001:db8::1", 8080, True),
        ("2001:db8::1", "2001:db8::1", 443, True),
    ],
)
def test_grant_allows_its_host_and_port(granted: str, host: str, port: int, *, expected: bool) -> None:
    assert grant_of([granted]).allows(host, port) is expected
    assert ANY_HOST.allows(host, port) is (port in (80, 443))


@pytest.mark.parametrize(
    "text",
    [
        *("", "*", "*.com", "*.", "a..b", "a b", "http://example.com", "example.com/path", "user@example.com"),
        *(
            "example.com:0",
            "example.com:70000",
            "example.com:x",
            "example.com:²",
            "-a.example",
            "a" * 300,
            "*.192.0.2.7",
        ),
        *("127.1", "0x7f.1", "2130706433", "１２７.0.0.1:80:1", "ex\0ample.com", "[::1", "*.*.example.com"),
        *("*.co.uk", "*.com.au:443", "*.github.io", "*.CO.UK.", "*.公司.cn"),
    ],
)
def test_text_that_names_no_host_is_refused(text: str) -> None:
    with pytest.raises(HostInvalid):
        grant_of([text])


def test_a_wildcard_covers_the_subdomains_of_one_owner() -> None:
    grant = grant_of(["*.example.co.uk", "*.mine.github.io", "*.corp.internal"])
    assert grant.allows("a.example.co.uk", 443)
    assert not grant.allows("other.co.uk", 443)


def test_forms_of_one_host_are_normalized() -> None:
    assert {normalized_host(text) for text in ("[::1]", "::1", "0:0:0:0:0:0:0:1")} == {"::1"}
    assert split_port("[::1]:80") == ("[::1]", 80)
    assert split_port("::1") == ("::1", None)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("127.0.0.1", False),
        ("10.0.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("64:ff9b::a00:1", False),
        ("2002:7f00:1::", False),
        ("fe80::1", False),
        ("fc00::1", False),
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
    ],
)
def test_only_public_addresses_and_those_of_the_operator_are_allowed(address: str, *, expected: bool) -> None:
    policy = EgressPolicy(private_networks=(ipaddress.ip_network("10.1.0.0/16"),))
    assert policy.allows_address(ipaddress.ip_address(address)) is expected
