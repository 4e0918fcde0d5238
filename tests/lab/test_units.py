"""How users write rates and clocks, and which texts are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netoffload.errors import UsageError
from netoffload.lab.units import parse_clock_hz, parse_rate_bps


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


@pytest.mark.slow
@given(st.text(max_size=12))
def test_any_text_is_a_value_or_a_usage_error(text: str) -> None:
    for parse in (parse_rate_bps, parse_clock_hz):
        try:
            assert parse(text) > 0
        except UsageError as error:
            assert repr(text) in str(error)
