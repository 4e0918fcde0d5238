"""A NIC to watch without root: the real engine with known traffic."""

import subprocess
from collections.abc import Callable

import numpy as np

from netoffload_daemon.port import Port, make_port
from tests.engine.frames import make_segment
from tests.engine.nic_pair import Nic, connect

FLOATS = 20_000
RUN_ID = "look"

Cli = Callable[..., subprocess.CompletedProcess[str]]


def used_nic() -> Nic:
    """A NIC whose host sent one compressed segment on one flow, and one on a flow whose peer has no NIC."""
    nic, peer = Nic(), Nic()
    connect(nic, peer, isn=1000)
    values = np.random.default_rng(5).normal(0, 0.01, FLOATS // 2).astype(np.float32)
    peer.from_wire(nic.from_host(make_segment(values.tobytes(), seq=1001)))
    nic.from_host(make_segment(flags="S", seq=9, sport=40001))
    nic.from_host(make_segment(values[:300].tobytes(), seq=10, sport=40001))
    return nic


def port_of(nic: Nic) -> Port:
    """The daemon's arrays around this NIC's."""
    return make_port(nic.settings)._replace(nic=nic.state)
