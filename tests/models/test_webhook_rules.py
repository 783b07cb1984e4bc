"""What the text of an address says, and which addresses are public."""

from dataclasses import replace

import pytest

from models.errors import InvalidInput
from models.settings import BadSetting, Settings
from models.webhook_rules import Target, WebhookRules

RULES = WebhookRules.from_settings(Settings())
ON_LOOPBACK = WebhookRules.from_settings(
    Settings(webhook_http="on", webhook_allowed_networks="127.0.0.0/8 ::1/128")
)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://hooks.example.com", Target(True, "hooks.example.com", 443, "/")),
        ("https://Hooks.Example.com./a?b=c&d", Target(True, "hooks.example.com", 443, "/a?b=c&d")),
        ("https://example.com:8443/%20", Target(True, "example.com", 8443, "/%20")),
        ("https://example.com?x=//@", Target(True, "example.com", 443, "/?x=//@")),
        ("https://93.184.215.14/", Target(True, "93.184.215.14", 443, "/")),
        ("https://[2606:4700::1111]:443/", Target(True, "2606:4700::1111", 443, "/")),
        ("https://cafe.ee/", Target(True, "cafe.ee", 443, "/")),
        ("https://xn--mnchen-3ya.example/", Target(True, "xn--mnchen-3ya.example", 443, "/")),
    ],
)
def test_an_address_is_taken_apart_once(url: str, target: Target) -> None:
    assert RULES.target(url) == target


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example.com",
        "//hooks.example.com",
        "http://hooks.example.com",
        "ftp://hooks.example.com",
        "file:///etc/passwd",
        "gopher://hooks.example.com",
        "https://",
        "https:///path",
        "https://:443/",
        "https://user@example.com/",
        "https://user:password@example.com/",
        "https://@example.com/",
        "https://example.com/#here",
        "https://example.com/#",
        "https://example.com:22/",
        "https://example.com:25/",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://example.com:port/",
        "https://exa mple.com/",
        "https://example.com/a b",
        "https://example.com/\r\nHost: evil",
        "https://example.com\t/",
        "https://example.com\\@evil.example/",
        "https://münchen.example/",
        "https://exam%70le.com/",
        "https://-example.com/",
        "https://[::1/",
        "https://[nothing]/",
        "https://[v1.x]/",
        "https://" + "a" * 254 + "/",
        "https://example.com/" + "a" * 2000,
    ],
)
def test_what_is_no_address_for_webhooks_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        RULES.target(url)
    assert refused.value.errors is not None
    assert set(refused.value.errors) == {"url"}


LOOPBACK = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f.1",
    "0x7f000001",
    "017700000001",
    "0177.0.0.1",
]


@pytest.mark.parametrize("host", [*LOOPBACK, "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]"])
def test_loopback_is_found_in_every_spelling(host: str) -> None:
    with pytest.raises(InvalidInput, match="not a public one"):
        RULES.target(f"https://{host}/")
    assert ON_LOOPBACK.target(f"http://{host}:8000/").port == 8000


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",  # noqa: S104
        "0.1.2.3",
        "10.0.0.1",
        "10.255.255.255",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.255.255.254",
        "169.254.0.1",
        "169.254.169.254",
        "169.254.170.2",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.1",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "168.63.129.16",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:0:127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b::10.0.0.1",
        "64:ff9b:1::808:808",
        "100::1",
        "2001::1",
        "2001:0:7f00:1::1",
        "2001:10::1",
        "2001:20::1",
        "2001:db8::1",
        "2002:7f00:1::1",
        "2002:a9fe:a9fe::1",
        "2002:808:808::1",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fd12:3456::1",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
        "ff0e::1",
        "4000::1",
    ],
)
def test_what_is_not_out_on_the_internet_is_refused(address: str) -> None:
    assert not RULES.permits(address)


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "93.184.215.14",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.167.255.255",
        "192.169.0.0",
        "223.255.255.255",
        "168.63.129.17",
        "2606:4700::1111",
        "2a00:1450:4001::1",
        "2001:4860:4860::8888",
        "2600::",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
    ],
)
def test_what_is_out_there_is_allowed(address: str) -> None:
    assert RULES.permits(address)


def test_what_is_allowed_on_purpose_is_no_more_than_was_said() -> None:
    rules = WebhookRules.from_settings(Settings(webhook_allowed_networks="10.1.0.0/16 fd00::/8"))
    allowed = ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd00::1", "8.8.8.8"]
    assert all(rules.permits(address) for address in allowed)
    assert not any(rules.permits(address) for address in ("10.2.0.1", "127.0.0.1", "fe80::1"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"webhook_allowed_networks": "10.0.0.0/33"},
        {"webhook_allowed_networks": "10.0.0.1/8"},
        {"webhook_allowed_networks": "localhost"},
        {"webhook_retry_seconds": "5 soon"},
        {"webhook_retry_seconds": "5 0"},
        {"webhook_retry_seconds": "-1"},
    ],
)
def test_settings_that_can_not_be_used_stop_the_start(wrong: dict[str, str]) -> None:
    with pytest.raises(BadSetting, match=f"COMFYFLEET_{next(iter(wrong)).upper()}"):
        WebhookRules.from_settings(replace(Settings(), **wrong))


def test_there_may_be_a_single_try() -> None:
    assert WebhookRules.from_settings(Settings(webhook_retry_seconds="")).pauses == ()
