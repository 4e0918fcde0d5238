"""Two NICs back to back do what the docstring promises (the documentation page: ``tests/test_docs_commands.py``)."""

import numpy as np
import pytest

from netoffload import codec
from netoffload.engine.nic import REBUILT_BATCH, count_rebuilt
from netoffload.engine.pair import Stream, pair, tcp_payload
from netoffload.errors import UsageError
from netoffload.wire import tcp

GRADIENT = np.random.default_rng(3).normal(0, 0.002, 40_000).astype(np.float32)


@pytest.mark.parametrize("name", ["inceptionn", "bounded", "truncate16"])
def test_values_arrive_as_the_codec_makes_them_in_fewer_octets(name: str) -> None:
    client, server = pair(name, bound_k=8)
    stream = Stream(client, server)
    frames = stream.send(GRADIENT)
    frames += stream.send(GRADIENT)
    expected = np.empty_like(GRADIENT)
    codec.get(name).round_trip(GRADIENT, 8, out=expected)
    received = stream.received()
    assert np.array_equal(received[GRADIENT.size :], expected)
    judged = received[: GRADIENT.size]  # exact before the verdict
    begun = int(np.argmax(judged != GRADIENT))
    assert np.array_equal(judged[:begun], GRADIENT[:begun])
    assert np.array_equal(judged[begun:], expected[begun:])
    assert sum(map(len, frames)) < 0.6 * 2 * GRADIENT.nbytes
    assert client.counts()["tx_blocks"] == server.counts()["rx_blocks"] > 0
    assert client.flows()[0]["blocks"] == client.counts()["tx_blocks"]


def test_what_no_nic_takes_is_refused() -> None:
    for wrong in (0, 17, "10"):
        with pytest.raises(UsageError, match="bound"):
            pair("packed", wrong)  # type: ignore[arg-type]
    for mtu in (0, 575, 9001):
        with pytest.raises(UsageError, match=f"mtu {mtu} is outside 576..9000"):
            pair("packed", mtu=mtu)


def test_connections_of_one_pair_do_not_mix() -> None:
    client, server = pair()
    first, second = Stream(client, server), Stream(client, server, sport=40_001)
    for _ in range(3):
        first.send(GRADIENT[:5000])
        second.send(-GRADIENT[:5000])
    assert np.array_equal(first.received(), -second.received())
    assert len(client.flows()) == 2


def test_a_batch_of_many_segments_is_delivered_whole_and_in_order() -> None:
    client, server = pair(bound_k=10)
    streams = [Stream(client, server, sport=sport) for sport in (40_000, 40_001)]
    for stream in streams:
        stream.send(GRADIENT)  # the verdict
    frames, expected = [], []
    for turn in range(3 * REBUILT_BATCH):  # without PSH: a segment ends where the other connection's begins
        part, stream = GRADIENT[turn * 3000 :][:3000], streams[turn % 2]
        frames += client.from_host(stream._frame(tcp.ACK_FLAG, stream._seq, part.tobytes(), ack=1))
        stream._seq += part.nbytes
        expected.append(np.empty_like(part))
        codec.get("inceptionn").round_trip(part, 10, out=expected[-1])
    assert len(frames) == 2 * len(expected)
    segments = [np.frombuffer(tcp_payload(frame), "<f4") for frame in server.from_wire(frames)]
    assert len(segments) == len(expected)
    assert all(np.array_equal(got, wanted) for got, wanted in zip(segments, expected, strict=True))
    assert count_rebuilt(server.state) == 0
