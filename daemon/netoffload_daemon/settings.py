"""What a NIC is started with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from netoffload.config import BOUND_K_DEFAULT, PACKINGS, check_bound_k, check_choice
from netoffload.errors import UsageError

_DEVICE_NAME: Final = re.compile(r"[A-Za-z0-9._@:-]{1,15}")


@dataclass(frozen=True)
class NicSettings:
    """One NIC.

    Attributes:
        host: the host's device: ``tap:NAME``.
        wire: the wire's interface.
        host_netns: path of the namespace with the host's device; None is this one.
        wire_netns: path of the namespace with the wire; None is this one.
        codec: codec of the blocks it makes.
        bound_k: their error bound is 2**-bound_k.
        packing: ``coalesced`` or ``per-segment``.
        control: where the control socket listens; None for no control socket.
        flow_table: file that keeps the flow tables for a restart; None keeps them in memory.
        metrics_port: where Prometheus metrics are served on 127.0.0.1; None for nowhere.
        ready_fd: descriptor that gets ``ready`` and a newline when frames are forwarded.
    """

    host: str
    wire: str
    host_netns: str | None = None
    wire_netns: str | None = None
    codec: str = "inceptionn"
    bound_k: int = BOUND_K_DEFAULT
    packing: str = PACKINGS[0]
    control: Path | None = None
    flow_table: Path | None = None
    metrics_port: int | None = None
    ready_fd: int | None = None

    def __post_init__(self) -> None:
        """Refuse what can be refused without opening anything."""
        check_bound_k(self.bound_k)
        check_choice("packing", self.packing, PACKINGS)
        if self.metrics_port is not None and not 1 <= self.metrics_port <= 65535:
            raise UsageError(f"metrics port {self.metrics_port} is outside 1..65535")
        kind, _, name = self.host.partition(":")
        if kind != "tap" or not name:
            raise UsageError(f"host device {self.host!r} is not tap:NAME")
        for device in (name, self.wire):
            if not _DEVICE_NAME.fullmatch(device):
                raise UsageError(f"{device!r} is not an interface name: 1..15 letters, digits and . _ - @ :")

    @property
    def host_name(self) -> str:
        """Interface name of the host's device."""
        return self.host.partition(":")[2]
