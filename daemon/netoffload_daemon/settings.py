"""What a NIC is started with."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from netoffload.config import (
    BOUND_K_DEFAULT,
    BYPASSES,
    ENCAPSULATIONS,
    PACKINGS,
    TOS_COMPRESS,
    Ports,
    check_bound_k,
    check_bypass,
    check_choice,
    check_nic_loop,
    check_policy,
)
from netoffload.errors import UsageError
from netoffload.faults import FaultSettings
from netoffload_daemon.privileges import USER_DEFAULT

HOST_KINDS: Final = ("tap", "veth")
TRACE_SIDES: Final = ("host", "wire", "both")

_DEVICE_NAME: Final = re.compile(r"[A-Za-z0-9._@:-]{1,15}")


@dataclass(frozen=True)
class NicSettings:
    """One NIC.

    Attributes:
        host: the host's device: ``tap:NAME`` (made if it is not there), or ``veth:NAME``, the NIC's end of a veth pair.
        wire: the wire's interface.
        tag: ToS or traffic class of tagged segments, or ``TAG_ANY``.
        ports: tagged connections have a port in one of these ranges; empty: any.
        ephemeral: whether a TAP that is made goes with the process; else it stays, with addresses and connections.
        host_netns: path of the namespace with the host's device; None is this one.
        wire_netns: path of the namespace with the wire; None is this one.
        codec: codec of the blocks it makes.
        bound_k: their error bound is 2**-bound_k.
        packing: ``coalesced`` or ``per-segment``.
        encapsulation: ``udp`` towards peers that take it, or ``ipcomp``.
        control: where the control socket listens; None for no control socket.
        flow_table: file that keeps the flow tables for a restart; None keeps them in memory.
        key: file with the key of the MAC of every block; None for blocks without one.
        metrics_port: where Prometheus metrics are served on 127.0.0.1; None for nowhere.
        ready_fd: descriptor that gets ``ready`` and a newline when frames are forwarded.
        faults: what happens on purpose to frames for the wire.
        threads: 1, or 2 for one per direction.
        busy_poll_us: how long to look for frames without sleeping after the last one, microseconds.
        user: who the process is once its devices are open; ``root`` keeps all rights.
        trace: pcapng file of the frames that cross; None for no trace.
        trace_side: which frames: the ``host``'s, the ``wire``'s or ``both``.
        bypass: who carries the frames that are not touched: this process (``user``) or the ``kernel``.
    """

    host: str
    wire: str
    host_netns: str | None = None
    wire_netns: str | None = None
    codec: str = "inceptionn"
    bound_k: int = BOUND_K_DEFAULT
    packing: str = PACKINGS[0]
    encapsulation: str = ENCAPSULATIONS[0]
    control: Path | None = None
    flow_table: Path | None = None
    key: Path | None = None
    metrics_port: int | None = None
    ready_fd: int | None = None
    faults: FaultSettings = field(default_factory=FaultSettings)
    threads: int = 1
    busy_poll_us: int = 0
    user: str = USER_DEFAULT
    trace: Path | None = None
    trace_side: str = "both"
    bypass: str = BYPASSES[0]
    ephemeral: bool = False
    tag: int = TOS_COMPRESS
    ports: Ports = ()

    def __post_init__(self) -> None:
        """Refuse what can be refused without opening anything."""
        check_bound_k(self.bound_k)
        check_choice("packing", self.packing, PACKINGS)
        check_choice("encapsulation", self.encapsulation, ENCAPSULATIONS)
        if self.metrics_port is not None and not 1 <= self.metrics_port <= 65535:
            raise UsageError(f"metrics port {self.metrics_port} is outside 1..65535")
        check_choice("trace side", self.trace_side, TRACE_SIDES)
        check_bypass(self.bypass, has_faults=self.faults.is_on, has_trace=self.trace is not None)
        check_nic_loop(self.threads, self.busy_poll_us)
        check_policy(self.tag, self.ports, self.bypass)
        kind, _, name = self.host.partition(":")
        if kind not in HOST_KINDS or not name:
            raise UsageError(f"host device {self.host!r} is not tap:NAME or veth:NAME")
        for device in (name, self.wire):
            if not _DEVICE_NAME.fullmatch(device):
                raise UsageError(f"{device!r} is not an interface name: 1..15 letters, digits and . _ - @ :")

    @property
    def host_name(self) -> str:
        """Interface name of the host's device."""
        return self.host.partition(":")[2]

    @property
    def host_is_veth(self) -> bool:
        """Whether the host's device is the NIC's end of a veth pair; else it is a TAP."""
        return self.host.startswith("veth:")
