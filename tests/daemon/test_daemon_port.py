"""Buffers are laid out as the vector kernels need them."""

import pytest

from netoffload.codec.kernels import DECODE_SLACK
from netoffload.engine.nic import make_settings
from netoffload.engine.transmit import WIRE_BUFFER_LEN
from netoffload_daemon.port import Port, make_port
from netoffload_daemon.vlan import TAG_LEN

IPV4_WITH_TIMESTAMPS = 10 + 14 + 20 + 32


@pytest.fixture(scope="module")
def port() -> Port:
    return make_port(make_settings())


@pytest.mark.parametrize(("name", "frame_at"), [("host_in", TAG_LEN), ("wire_in", TAG_LEN), ("rebuilt", 0)])
def test_the_payload_of_every_row_begins_a_cache_line(port: Port, name: str, frame_at: int) -> None:
    rows = getattr(port.nic if name == "rebuilt" else port, name)
    assert rows.flags.c_contiguous
    assert {(row.ctypes.data + frame_at + IPV4_WITH_TIMESTAMPS) % 64 for row in rows} == {0}


def test_messages_point_into_their_rows(port: Port) -> None:
    for rows, vectors, slack in ((port.host_in, port.host_vectors, 0), (port.wire_in, port.in_vectors, DECODE_SLACK)):
        for row, (address, room) in zip(rows, vectors, strict=False):
            assert address == row.ctypes.data + TAG_LEN
            assert TAG_LEN + room + slack <= row.size


def test_blocks_begin_on_a_cache_line(port: Port) -> None:
    assert port.wire_out.ctypes.data % 64 == 0
    assert port.wire_out.size >= 2 * WIRE_BUFFER_LEN
