"""The meter: serves the counters of every wire of a testbed to programs on its nodes.

One command, ``wires``, on a Unix socket that ranks find in ``$NETOFFLOAD_METER``::

    {"command": "wires"}
    {"ok": true, "nodes": [{"name": "n0", "address": "10.98.1.1", "tx_octets": ..., "tx_frames": ...,
                            "rx_octets": ..., "rx_frames": ..., "nic_control": PATH or null}, ...]}

The numbers are those of the qdisc at each end of the wire: it counts every header of every segment of a GSO frame,
where interface counters count one header for up to 64 KiB.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from netoffload.control import ControlServer, request
from netoffload.lab.testbed.build import Testbed


def octets_on_wires(path: str) -> int:
    """Return what all nodes have sent on their wires, by the meter at this socket."""
    return sum(int(node["tx_octets"]) for node in request(path, "wires")["nodes"])


@contextlib.contextmanager
def metered(bed: Testbed) -> Iterator[Path]:
    """Serve the wires' counters of a running testbed; yield the path of the socket, in the run's state directory."""

    def wires(_asked: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "nodes": [
                {
                    **asdict(counted),
                    "address": node.address,
                    "nic_control": None if node.control_path is None else str(node.control_path),
                }
                for node, counted in zip(bed.plan.nodes, bed.wire_counters(), strict=True)
            ]
        }

    path = bed.plan.state_dir / f"meter-{secrets.token_hex(4)}.sock"
    with ControlServer(path, {"wires": wires}):
        yield path
