"""Every option of a NIC: a field of :class:`NicOptions`, :class:`NicSettings` or :class:`NicProcess`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from netoffload import log
from netoffload.codec_specs import LOSSLESS
from netoffload.config import (
    BOUND_K_DEFAULT,
    CODECS,
    ENCAPSULATIONS,
    PACKINGS,
    PORT_MAX,
    TAG_ANY,
    TOS_COMPRESS,
    Ports,
    check_bound_k,
    check_choice,
    format_tag,
    parse_ports,
    parse_tag,
)
from netoffload.errors import UsageError
from netoffload.nic_options.faults import FaultSettings, parse_faults
from netoffload.nic_options.option import BUILDING, option, options_of

HOST_KINDS: Final = ("tap", "veth")
TRACE_SIDES: Final = ("host", "wire", "both")

USER_DEFAULT: Final = "nobody"
"""The user to whom a NIC switches once its devices are open."""

_DEVICE_NAME: Final = re.compile(r"[A-Za-z0-9._@:-]{1,15}")


def _check_threads(threads: int) -> None:
    if threads not in (1, 2):
        raise UsageError(f"{threads} threads are not possible: use 1, or 2 for one per direction")


def _check_busy_poll_us(busy_poll_us: int) -> None:
    if not 0 <= busy_poll_us <= 1_000_000:
        raise UsageError(f"busy polling for {busy_poll_us} us is outside 0..1000000")


def _check_metrics_port(port: int) -> None:
    if not 1 <= port <= PORT_MAX:
        raise UsageError(f"metrics port {port} is outside 1..{PORT_MAX}")


@dataclass(frozen=True)
class NicOptions:
    """The options of any NIC."""

    codec: str = option(
        "--codec",
        "Codec of the blocks",
        CODECS[0],
        metavar="NAME",
        choices=CODECS,
        commands=(*BUILDING, "train"),
        more="[Codecs](../design/codecs.md) describes them.",
    )
    bound_k: int = option(
        "--bound",
        "Error bound 2^-K, K in 1..16; inceptionn's is 2^-7 at least, truncate16 to 24 and exact have none",
        BOUND_K_DEFAULT,
        metavar="K",
        check=check_bound_k,
        commands=(*BUILDING, "train", "demo"),
    )
    packing: str = option(
        "--packing",
        "How frames are filled",
        PACKINGS[0],
        choices=PACKINGS,
        commands=(*BUILDING, "train", "demo"),
        more="`coalesced` fills frames up to the MTU; `per-segment` makes one frame per segment, as the paper's NIC.",
    )
    encapsulation: str = option(
        "--encapsulation",
        "What carries blocks to peers that take it",
        ENCAPSULATIONS[0],
        choices=ENCAPSULATIONS,
        more="`udp` is UDP to port 61736: if cores are the limit, it is 1.6 times as fast from Linux 6.2 on"
        " ([lab](../lab/nic.md)). `ipcomp` is IP protocol 108. A NIC takes blocks in both forms.",
    )
    faults: str = option(
        "--fault",
        "Damage frames for the wire: loss=P,dup=P,reorder=P,flip=P,truncate=P,delay=5ms,seed=N",
        "",
        metavar="FAULTS",
        check=parse_faults,
        more="One or several of them: see [Faults on purpose](#faults-on-purpose).",
    )
    threads: int = option(
        "--threads",
        "Threads: 1, or 2 for one per direction",
        1,
        metavar="N",
        check=_check_threads,
        more="Use 2 on a machine with a spare core.",
    )
    busy_poll_us: int = option(
        "--busy-poll",
        "How long to look for frames before sleeping, microseconds",
        0,
        metavar="US",
        check=_check_busy_poll_us,
        more="It saves delay, but keeps a core busy under load.",
    )
    bypass: str = option(
        "--bypass",
        "What carries frames that stay unchanged, this process or tc filters",
        "user",
        choices=("user", "kernel"),
        more="See [Bypass in the kernel](#bypass-in-the-kernel).",
    )
    tag: str = option(
        "--tag",
        "ToS or traffic class of tagged connections: 0x28, 40, AF11; any, with --ports or a lossless codec",
        format_tag(TOS_COMPRESS),
        metavar="TOS",
        check=parse_tag,
        more="See [What is tagged](#what-is-tagged).",
    )
    ports: str = option(
        "--ports", "Tag only connections from or to these ports: 5000-5999,7000", "", metavar="LIST", check=parse_ports
    )
    trust: str = option(
        "--trust",
        "Who promises that a tagged connection carries float32, its own socket or the operator for every tag",
        "socket",
        choices=("socket", "tag"),
        more="With `--ports` the operator promises it. See [Who promises floats](#who-promises-floats).",
    )
    log_format: str = option(
        "--log-format",
        "Form of the log on standard error, lines for people or one JSON object per line",
        log.FORMATS[0],
        choices=log.FORMATS,
        more="See [Logs](monitoring.md#logs).",
    )

    def __post_init__(self) -> None:
        """Refuse impossible values, as far as they show without opening anything."""
        for field, asked in options_of(type(self)):
            value = getattr(self, field.name)
            if asked.choices:
                check_choice(field.name.replace("_", " "), value, asked.choices)
            if asked.check is not None and value is not None:
                asked.check(value)
        if self.tag_tos == TAG_ANY and not self.port_ranges and not self.is_lossless:
            raise UsageError(
                f"tag any needs ports with codec {self.codec}, which rounds: without --ports every connection would "
                "count as floats; name the ports of floats, or take --codec exact, which gives back every bit"
            )
        if self.bypass == "kernel" and self.tag_tos == TAG_ANY:
            raise UsageError("tag any and bypass kernel exclude each other: the kernel knows connections by their ToS")
        if self.bypass == "kernel" and self.fault_settings.is_on:
            raise UsageError("faults and bypass kernel exclude each other: the NIC has to see every frame")

    @property
    def fault_settings(self) -> FaultSettings:
        """The damage that is done on purpose to frames for the wire."""
        return parse_faults(self.faults)

    @property
    def tag_tos(self) -> int:
        """ToS or traffic class of tagged segments, or ``TAG_ANY``."""
        return parse_tag(self.tag)

    @property
    def port_ranges(self) -> Ports:
        """Tagged connections have a port in one of these ranges; empty: any."""
        return parse_ports(self.ports)

    @property
    def is_lossless(self) -> bool:
        """Whether the codec gives back every bit, so that nobody need promise float32."""
        return self.codec in LOSSLESS

    @property
    def asks_sockets(self) -> bool:
        """Whether a connection's own socket must bear the tag; else the operator promises float32, or nobody need."""
        return self.trust == "socket" and not self.port_ranges and not self.is_lossless

    def shared(self) -> dict[str, Any]:
        """Return the values of the options of :class:`NicOptions`, by field."""
        return {field.name: getattr(self, field.name) for field, _ in options_of(NicOptions)}

    def argv(self) -> list[str]:
        """Return the arguments for these settings: all of :class:`NicOptions`, and others that are not the default."""
        words: list[str] = []
        always = self.shared()
        for field, asked in options_of(type(self)):
            value = getattr(self, field.name)
            if field.name in always or value != field.default:
                words += [asked.flag] if value is True else [asked.flag, str(value)]
        return words


@dataclass(frozen=True)
class NicSettings(NicOptions):
    """The options of all NICs of a testbed; the i-th NIC adds i to the seed of the faults."""

    host: str = option(
        "--host", "Kind of each node's device, a TAP or one end of a veth pair", HOST_KINDS[0], choices=HOST_KINDS
    )
    keyed: bool = option(
        "--keyed", "Add a MAC to every block, with a key that the testbed draws", default=False, commands=("up",)
    )

    @property
    def tos(self) -> int:
        """The ToS with which the testbed's programs mark their tagged sockets."""
        return TOS_COMPRESS if self.tag_tos == TAG_ANY else self.tag_tos

    def tagged_port(self, port: int) -> int:
        """Return ``port`` if tagged connections may have it, else the first port that they may have."""
        ranges = self.port_ranges
        return port if not ranges or any(first <= port <= last for first, last in ranges) else ranges[0][0]


@dataclass(frozen=True, kw_only=True)
class NicProcess(NicOptions):
    """The options of one NIC process."""

    host: str = option(
        "--host",
        "The host's device: a TAP, which is made if it does not exist, or the NIC's end of a veth pair",
        metavar="KIND:NAME",
        unit_variable="",
        more="KIND is `tap` or `veth`. A TAP outlives the NIC: see [Restarts](#restarts). Leave the offloads of the"
        " host's end of a veth pair on (`ethtool -k`), as they are by default.",
    )
    wire: str = option(
        "--wire",
        "The wire's interface",
        metavar="NAME",
        unit_variable="",
        more="It may be any Ethernet interface.",
    )
    host_netns: str | None = option(
        "--host-netns",
        "Network namespace of the host's device",
        None,
        metavar="PATH",
        unit_variable="",
        more="The NIC opens the device there, but runs in its own namespace.",
    )
    wire_netns: str | None = option(
        "--wire-netns", "Network namespace of the wire", None, metavar="PATH", unit_variable=""
    )
    socket_netns: str | None = option(
        "--socket-netns",
        "Network namespace of the host's programs",
        None,
        metavar="PATH",
        more="The default is that of the host's device. A veth pair needs it if its other end is in another namespace.",
    )
    ephemeral: bool = option(
        "--ephemeral",
        "A TAP that the NIC makes ends with it, and so do the host's connections",
        default=False,
        unit_variable="",
    )
    control: Path | None = option(
        "--control",
        "Unix socket to listen on for counters, flows and stop",
        None,
        metavar="PATH",
        unit_variable="",
        more="It belongs to root, mode 0600.",
    )
    key: Path | None = option(
        "--key",
        "File with a key: add a MAC to every block, and demand one from peers",
        None,
        metavar="FILE",
        more="Both NICs need the same key: see [A key](#a-key).",
    )
    flow_table: Path | None = option(
        "--flow-table",
        "Keep the flows in this file, for a restart; none: in memory",
        None,
        metavar="FILE",
        unit_variable="",
        more="The default is a file in `/run/netoffload-flows`; with `--ephemeral`, memory. See [Restarts](#restarts).",
    )
    metrics_port: int | None = option(
        "--metrics-port",
        "Serve Prometheus metrics at http://127.0.0.1:N/metrics",
        None,
        metavar="N",
        check=_check_metrics_port,
        more="[Monitoring](monitoring.md) lists the metrics.",
    )
    ready_fd: int | None = option(
        "--ready-fd",
        "Write 'ready' and a newline to this descriptor when forwarding",
        None,
        metavar="N",
        unit_variable="",
    )
    user: str = option(
        "--user",
        "User to become once devices are open; root stays root",
        USER_DEFAULT,
        metavar="NAME",
        unit_variable="RUN_AS",  # systemd sets USER
    )
    trace: Path | None = option(
        "--trace",
        "Write the frames that cross to this pcapng file",
        None,
        metavar="FILE",
        more="See [Traces](#traces).",
    )
    trace_side: str = option("--trace-side", "Side whose frames the trace has", "both", choices=TRACE_SIDES)

    def __post_init__(self) -> None:
        """Refuse impossible values, as far as they show without opening anything."""
        super().__post_init__()
        if self.trace is None and self.trace_side != "both":
            raise UsageError("a trace side goes with a trace: give --trace FILE, or leave --trace-side out")
        if self.bypass == "kernel" and self.trace is not None:
            raise UsageError("a trace and bypass kernel exclude each other: the NIC has to see every frame")
        kind, _, name = self.host.partition(":")
        if kind not in HOST_KINDS or not name:
            raise UsageError(f"host device {self.host!r} is not tap:NAME or veth:NAME")
        for device in (name, self.wire):
            if not _DEVICE_NAME.fullmatch(device):
                raise UsageError(f"{device!r} is not an interface name: use 1..15 letters, digits and . _ - @ :")

    @property
    def host_name(self) -> str:
        """Interface name of the host's device."""
        return self.host.partition(":")[2]

    @property
    def host_is_veth(self) -> bool:
        """Whether the host's device is the NIC's end of a veth pair; else it is a TAP."""
        return self.host.startswith("veth:")
