"""A program that sends floats through two NICs with the codec that its argument names."""

import sys

import numpy as np

from netoffload import codec
from netoffload.wire.ethernet import ETHERNET_LEN
from netoffload.wire.offload import TCP_HEADER, VERSION_CODEC
from netoffload.wire.vnet import VNET_LEN
from tests.engine.frames import make_segment
from tests.engine.nic_pair import Nic, connect

BLOCK_AT = VNET_LEN + ETHERNET_LEN + 20


def main(name: str) -> None:
    """Send 250 floats; what arrives must be the oracle's, and the block between must say the codec's number."""
    asked = codec.get(name)
    sender, receiver = Nic(codec=asked.codec_id), Nic()
    connect(sender, receiver)
    values = np.random.default_rng(6).normal(0, 0.3, 250).astype(np.float32)
    (block,) = sender.from_host(make_segment(values.tobytes(), seq=1001, flags="PA"))
    assert block[BLOCK_AT + VERSION_CODEC] & 15 == asked.codec_id
    assert len(block) - BLOCK_AT - TCP_HEADER - 32 == asked.oracle.encode(values, 10).size
    (segment,) = receiver.from_wire([block])
    wanted = asked.oracle.round_trip(values, 10)
    assert segment[-wanted.nbytes :] == wanted.tobytes()
    assert wanted.tobytes() != values.tobytes()
    print(f"{name} is codec {int(asked.codec_id)}")


main(sys.argv[1])
