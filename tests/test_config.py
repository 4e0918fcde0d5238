"""How users write rates, sizes, bounds and choices, and which texts are refused."""

from collections.abc import Callable
from typing import Any

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
    parse_ports,
    parse_size_octets,
    parse_tag,
)
from netoffload.errors import UsageError
from netoffload.nic_options import NicOptions

VALUES: dict[Callable[[str], object], dict[str, object]] = {
    parse_size_octets: {"25MB": 25 * 10**6, "64KiB": 65536, "4096": 4096, "1.5k": 1500, "1GB": 10**9},
    parse_tag: {"0x28": 40, "40": 40, "AF11": 40, "af21": 0x48, "CS1": 0x20, "EF": 0xB8, "any": TAG_ANY},
    parse_ports: {
        **{"": (), "7000": ((7000, 7000),), "5000-5999,7000": ((5000, 5999), (7000, 7000))},
        " 1 , 2-65535": ((1, 1), (2, 65535)),
    },
}
REFUSED: list[tuple[Callable[[str], object], str, list[str]]] = [
    (parse_size_octets, "size", ["", "MB", "-5", "0", "3 cows", "1TB"]),
    (parse_tag, "^tag ", ["", "fast", "0", "0x29", "0x2b", "256", "-4", "-1", "AF14", "CS0", "0.5"]),
    (parse_ports, "^ports ", [",", "0", "65536", "7000-6999", "5000-", "-5000", "http", "1,,2", "1-2-3"]),
]


@pytest.mark.parametrize(
    ("parse", "text", "value"), [(parse, *one) for parse, values in VALUES.items() for one in values.items()]
)
def test_a_text_is_a_value(parse: Callable[[str], object], text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "said", "text"), [(parse, said, text) for parse, said, texts in REFUSED for text in texts]
)
def test_a_wrong_text_is_refused(parse: Callable[[str], object], said: str, text: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse(text)


def test_what_is_formatted_is_parsed_to_the_same_value() -> None:
    assert all(parse_tag(format_tag(parse_tag(text))) == value for text, value in VALUES[parse_tag].items())
    assert all(parse_ports(format_ports(parse_ports(text))) == value for text, value in VALUES[parse_ports].items())


@pytest.mark.slow
@given(st.text(max_size=12))
def test_any_text_is_a_value_or_a_usage_error(text: str) -> None:
    try:
        assert parse_size_octets(text) > 0
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
    unhashable: Any = ["a"]
    with pytest.raises(UsageError, match=r"packing \['a'\] is unknown"):
        check_choice("packing", unhashable, ("a", "b"))


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
