"""Destinations and rules: what is covered, what is no host, what no address may be."""

from __future__ import annotations

import ipaddress

import pytest

from outlast.core.destinations import (
    MAX_RULES,
    Destination,
    Rule,
    covered,
    forbidden,
    read_networks,
    read_rules,
)
from outlast.errors import ConfigurationError


def to(url: str) -> Destination:
    scheme, _, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return Destination.read(scheme, place, slash + path)


@pytest.mark.parametrize(
    ("rule", "inside", "outside"),
    [
        (
            "api.example.com",
            ["http://api.example.com/", "https://API.Example.com./v1?x=1"],
            [
                "https://api.example.com:8443/",
                "https://example.com/",
                "https://x.api.example.com/",
                "https://api.example.com.evil.org/",
            ],
        ),
        ("https://api.example.com", ["https://api.example.com:443/x"], ["http://api.example.com/x"]),
        (
            "https://api.example.com/v1/pay",
            ["https://api.example.com/v1/pay", "https://api.example.com/v1/pay/7?q=../"],
            ["https://api.example.com/v1/payments", "https://api.example.com/v1", "https://api.example.com/"],
        ),
        (
            "https://api.example.com/v1/",
            ["https://api.example.com/v1/x", "https://api.example.com/v1/"],
            ["https://api.example.com/v1", "https://api.example.com/V1/x", "https://api.example.com/v1%2Fx"],
        ),
        (
            "*.example.com:8443",
            ["https://a.example.com:8443/", "http://b.a.example.com:8443/"],
            ["https://example.com:8443/", "https://a.example.com/", "https://aexample.com:8443/"],
        ),
        ("http://10.1.2.3:80", ["http://10.1.2.3/"], ["https://10.1.2.3/", "http://10.1.2.4/"]),
        ("http://[2001:db8::1]:8080", ["http://[2001:DB8:0::1]:8080/"], ["http://[2001:db8::2]:8080/"]),
    ],
)
def test_a_rule_covers_what_it_says(rule: str, inside: list[str], outside: list[str]) -> None:
    rules = read_rules([rule])
    assert [url for url in inside if not covered(to(url), rules)] == []
    assert [url for url in outside if covered(to(url), rules)] == []


def test_no_rule_covers_nothing() -> None:
    assert not covered(to("https://api.example.com/"), ())


@pytest.mark.parametrize(
    "host",
    [
        "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "127.0.0.1.", "1.2.3.4.5", "0x",
        "1.2.3.0x4", "[::1", "[::1%eth0]", "[127.0.0.1]", "::1", "user@host", "a..b", ".a", "-a.b",
        "a_b!", "", "é.example", "a b", "a%2eb",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "host:0", "host:65536",
        "host:", "host:8o", "host:80:80",
    ],
)  # fmt: skip
def test_what_is_no_host_is_refused(host: str) -> None:
    if host == "127.0.0.1.":
        # With its dot it is the plain spelling still.
        assert to(f"http://{host}/").host == "127.0.0.1"
        return
    with pytest.raises(ValueError, match=r"the (host|port)|an address"):
        to(f"http://{host}/")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../admin", "/v1/%2e%2e/admin", "/v1/%2E./admin", "/v1/..%2fadmin", "/v1/..%5cadmin",
        "/v1/%252e%252e/x", "/v1/..;x=1/admin", "/./x", "/v1/..", "/a\\..\\b",
    ],
)  # fmt: skip
def test_a_path_that_steps_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="steps upwards"):
        to(f"http://host{path}")
    with pytest.raises(ConfigurationError, match="steps upwards"):
        Rule.read(f"http://host{path}")


def test_what_is_sent_is_as_it_was_written() -> None:
    assert to("http://host/a%2Fb/...c?x=%20&y=../").target == "/a%2Fb/...c?x=%20&y=../"
    assert to("https://Host:443").url == "https://host/"
    assert to("http://[::1]:81/x").authority == "[::1]:81"
    for path in ("/a b", "/a\r\nb", "/a#b", "/é"):
        with pytest.raises(ValueError, match="character"):
            to(f"http://host{path}")
    with pytest.raises(ValueError, match="neither http nor https"):
        Destination.read("ftp", "host", "/")


@pytest.mark.parametrize(
    "text",
    ["", "https://", "ftp://host", "https://host?x", "user@host", "host:99999", "*.", "*", "a.*.b", "0x7f.1"],
)
def test_a_rule_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        Rule.read(text)


def test_rules_have_a_bound() -> None:
    assert len(read_rules(["host"] * MAX_RULES)) == MAX_RULES
    with pytest.raises(ConfigurationError):
        read_rules(["host"] * (MAX_RULES + 1))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254",
        "100.64.0.1", "0.0.0.0", "224.0.0.1", "239.1.1.1", "255.255.255.255", "192.0.2.1", "198.18.0.1",
        "240.0.0.1", "::", "::1", "fe80::1", "fc00::1", "fd12::1", "ff02::1", "2001:db8::1",
        "fe80::1%1", "fec0::1", "::ffff:8.8.8.8", "::ffff:127.0.0.1", "::8.8.8.8", "64:ff9b::8.8.8.8",
        "64:ff9b:1::1", "2002:808:808::1", "2001:0:1::1",
    ],
)  # fmt: skip
def test_nobody_may_connect_inside(address: str) -> None:
    assert forbidden(ipaddress.ip_address(address), ())


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111"])
def test_anybody_may_connect_outside(address: str) -> None:
    assert forbidden(ipaddress.ip_address(address), ()) is None


def test_an_operator_may_list_ranges() -> None:
    allowed = read_networks(["10.1.0.0/16", "::1/128", "64:ff9b::/96"])
    assert forbidden(ipaddress.ip_address("10.1.9.9"), allowed) is None
    assert forbidden(ipaddress.ip_address("::1"), allowed) is None
    assert forbidden(ipaddress.ip_address("64:ff9b::1"), allowed) is None
    assert forbidden(ipaddress.ip_address("10.2.0.1"), allowed)
    # A range of version 4 does not speak for version 6.
    assert forbidden(ipaddress.ip_address("::ffff:10.1.9.9"), allowed)
    with pytest.raises(ConfigurationError):
        read_networks(["10.1.0.1/16"])
