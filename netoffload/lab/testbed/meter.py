"""The meter: serves the counters of every wire of a testbed to programs on its nodes.

One command, ``wires``, on a Unix socket that ranks find in ``$NETOFFLOAD_METER``::

    {"command": "wires"}
    {"ok": true, "nodes": [{"name": "n0", "address": "10.98.1.1", "tx_octets": ..., "tx_frames": ...,
                            "rx_octets": ..., "rx_frames": ..., "nic_control": PATH or null}, ...]}

The numbers are those of the qdisc at each end of the wire: it counts every header of every segment of a GSO frame,
where interface counters count one header for up to 64 KiB.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from netoffload.control import ControlServer
from netoffload.lab.testbed.build import Testbed


class Meter:
    """Serves the wires' counters of a running testbed; a context manager."""

    def __init__(self, bed: Testbed) -> None:
        self._bed = bed
        self.path: Path = bed.plan.state_dir / f"meter-{secrets.token_hex(4)}.sock"
        self._server = ControlServer(self.path, {"wires": self._wires})

    def __enter__(self) -> Meter:
        """Start answering."""
        self._server.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop answering and remove the socket."""
        self._server.__exit__(*exc_info)

    def _wires(self, _asked: Mapping[str, Any]) -> dict[str, Any]:
        counters = self._bed.wire_counters()
        return {
            "nodes": [
                {
                    **asdict(counted),
                    "address": node.address,
                    "nic_control": None if node.control_path is None else str(node.control_path),
                }
                for node, counted in zip(self._bed.plan.nodes, counters, strict=True)
            ]
        }
