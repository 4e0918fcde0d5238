"""How users write rates, sizes, bounds and choices, and which texts are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netoffload.config import (
    TAG_ANY,
    check_bound_k,
    check_choice,
    format_ports,
    format_rate,
    format_tag,
    parse_clock_hz,
    parse_ports,
    parse_rate_bps,
    parse_size_octets,
    parse_tag,
)
from netoffload.errors import UsageError
from netoffload.nic_options import NicOptions


@pytest.mark.parametrize(
    ("text", "rate_bps"),
    [
        ("1gbit", 10**9),
        ("100mbit", 10**8),
        ("2.5Gbit", 2.5e9),
        ("1500 kbit", 1.5e6),
        ("10Gb/s", 10**10),
        ("1 Gbit/s", 10**9),
        ("1gbitps", 10**9),
    ],
)
def test_rates(text: str, rate_bps: float) -> None:
    assert parse_rate_bps(text) == rate_bps


@pytest.mark.parametrize(
    "text", ["", "fast", "1", "gbit", "-1gbit", "1gbyte", "0mbit", "10kbit", "101gbit", "1e9bit", "1gbit "[::-1]]
)
def test_wrong_rates(text: str) -> None:
    with pytest.raises(UsageError, match="rate"):
        parse_rate_bps(text)


@pytest.mark.parametrize("text", ["100mbps", "100MBps", "100 MB/s", "100MB", "100mb", "100mbyte", "100MiB/s"])
def test_a_rate_that_may_mean_bytes_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError, match="write 100mbit for bits per second"):
        parse_rate_bps(text)


@pytest.mark.parametrize(("text", "clock_hz"), [("100MHz", 10**8), ("1.5 ghz", 1.5e9), ("1000kHz", 10**6)])
def test_clocks(text: str, clock_hz: float) -> None:
    assert parse_clock_hz(text) == clock_hz


@pytest.mark.parametrize("text", ["", "100", "MHz", "-1MHz", "1Hz", "11GHz", "100mbit"])
def test_wrong_clocks(text: str) -> None:
    with pytest.raises(UsageError, match="clock"):
        parse_clock_hz(text)


@pytest.mark.parametrize(
    ("text", "octets"), [("25MB", 25 * 10**6), ("64KiB", 65536), ("4096", 4096), ("1.5k", 1500), ("1GB", 10**9)]
)
def test_sizes(text: str, octets: int) -> None:
    assert parse_size_octets(text) == octets


@pytest.mark.parametrize("text", ["", "MB", "-5", "0", "3 cows", "1TB"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(UsageError, match="size"):
        parse_size_octets(text)


@pytest.mark.slow
@given(st.text(max_size=12))
def test_any_text_is_a_value_or_a_usage_error(text: str) -> None:
    for parse in (parse_rate_bps, parse_clock_hz, parse_size_octets):
        try:
            assert parse(text) > 0
        except UsageError as error:
            assert repr(text) in str(error)


def test_rates_for_people() -> None:
    assert [format_rate(rate) for rate in (1e9, 958.3e6, 5e3, 12)] == ["1 Gb/s", "958.3 Mb/s", "5 kb/s", "12 b/s"]


def test_bounds_and_choices() -> None:
    assert [check_bound_k(k) for k in (1, 16)] == [1, 16]
    for bound_k in (0, 17):
        with pytest.raises(UsageError, match=r"1\.\.16"):
            check_bound_k(bound_k)
    assert check_choice("packing", "a", ("a", "b")) == "a"
    with pytest.raises(UsageError, match="packing 'c' is unknown: choose from a, b"):
        check_choice("packing", "c", ("a", "b"))


@pytest.mark.parametrize(
    ("text", "tag"),
    [("0x28", 0x28), ("40", 0x28), ("AF11", 0x28), ("af21", 0x48), ("CS1", 0x20), ("EF", 0xB8), ("any", TAG_ANY)],
)
def test_tags(text: str, tag: int) -> None:
    assert parse_tag(text) == tag
    assert parse_tag(format_tag(tag)) == tag


@pytest.mark.parametrize("text", ["", "fast", "0", "0x29", "0x2b", "256", "-4", "-1", "AF14", "CS0", "0.5"])
def test_wrong_tags(text: str) -> None:
    with pytest.raises(UsageError, match=r"^tag "):
        parse_tag(text)


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("", ()),
        ("7000", ((7000, 7000),)),
        ("5000-5999,7000", ((5000, 5999), (7000, 7000))),
        (" 1 , 2-65535", ((1, 1), (2, 65535))),
    ],
)
def test_ports(text: str, ports: tuple[tuple[int, int], ...]) -> None:
    assert parse_ports(text) == ports
    assert parse_ports(format_ports(ports)) == ports


@pytest.mark.parametrize("text", [",", "0", "65536", "7000-6999", "5000-", "-5000", "http", "1,,2", "1-2-3"])
def test_wrong_ports(text: str) -> None:
    with pytest.raises(UsageError, match=r"^ports "):
        parse_ports(text)


def test_nobody_need_promise_floats_to_a_lossless_codec() -> None:
    assert NicOptions(codec="packed").asks_sockets
    assert not NicOptions(codec="exact").asks_sockets


def test_a_tag_of_everything_needs_ports_or_a_lossless_codec_and_sees_every_frame() -> None:
    assert NicOptions(tag="any", ports="5000").tag_tos == TAG_ANY
    assert NicOptions(bypass="kernel").port_ranges == ()
    with pytest.raises(UsageError, match="tag any needs ports with codec packed, which rounds"):
        NicOptions(tag="any", codec="packed")
    assert NicOptions(tag="any", codec="exact").tag_tos == TAG_ANY
    with pytest.raises(UsageError, match="exclude each other"):
        NicOptions(tag="any", ports="5000", bypass="kernel")
