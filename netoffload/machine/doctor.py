"""Finds out by trying what this machine has and lacks; it changes nothing and leaves nothing behind.

It tries kernel objects in a network namespace without a name, which disappears with its thread. Every check says what
it saw and, if something is missing, what to do.
"""

import contextlib
import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from netoffload.devices.tap import open_tap
from netoffload.errors import EXTRAS, NetOffloadError
from netoffload.netlink import Namespace, redirect

SOCKET_BUFFER_OCTETS_WANTED: Final = 4 * 1024 * 1024
CORES_WANTED: Final = 2


@dataclass(frozen=True)
class Check:
    """One thing that this machine has (``ok``) or lacks."""

    name: str
    ok: bool
    required: bool
    """NICs or testbeds need it; the lack of other things makes something slower, or costs one feature."""
    detail: str
    """What the check saw."""
    advice: str
    """What to do if it is missing; empty if it is there."""


def checks() -> list[Check]:
    """Run every check and return the results, the most important first."""
    return [*_permissions(), *_kernel(), *_machine(), *_python_packages()]


def check(name: str, ok: bool, detail: str, advice: str, *, required: bool = True) -> Check:
    """Return a check whose advice stands only if the thing is missing."""
    return Check(name, ok, required, detail, "" if ok else advice)


def _permissions() -> Iterator[Check]:
    yield check("root", os.geteuid() == 0, f"user id {os.geteuid()}", "run with sudo")
    tun = Path("/dev/net/tun")
    advice = "modprobe tun; in a container: pass the device /dev/net/tun"
    yield check("/dev/net/tun", tun.exists(), "there" if tun.exists() else "missing", advice)


def _kernel() -> Iterator[Check]:
    try:
        namespace = Namespace.anonymous()
    except NetOffloadError as error:
        yield check("network namespaces", False, str(error), "run with sudo, on a kernel with CONFIG_NET_NS")
        return
    yield check("network namespaces", True, f"Linux {platform.release()}", "")
    with namespace:
        yield try_out("veth", lambda: namespace.add_veth("v0", "v1", None, 1500), "needs CONFIG_VETH (modprobe veth)")

        def tap() -> None:
            namespace.call(lambda: os.close(open_tap("t0").descriptor))

        yield try_out("TAP, TSO and checksum offload", tap, "needs CONFIG_TUN (modprobe tun)")
        advice = "only for --bypass kernel: CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_BPF, CONFIG_NET_ACT_MIRRED"
        v1_to_v0 = redirect.Redirect("v1", "ingress", "v0", "egress")

        def bypass() -> None:
            redirect.add_redirect(namespace, v1_to_v0, redirect.EVERYTHING)

        yield try_out("bypass in the kernel", bypass, advice, required=False)


def try_out(name: str, function: Callable[[], object], advice: str, *, required: bool = True) -> Check:
    """Return a check that calls ``function``, which raises where the thing is missing."""
    try:
        function()
    except (NetOffloadError, OSError) as error:
        return check(name, False, str(error), advice, required=required)
    return check(name, True, "works", "", required=required)


def _machine() -> Iterator[Check]:
    for name in ("rmem_max", "wmem_max"):
        octets = 0
        with contextlib.suppress(OSError, ValueError):
            octets = int(Path("/proc/sys/net/core", name).read_text())
        advice = f"sysctl net.core.{name}={SOCKET_BUFFER_OCTETS_WANTED}: the NIC's queues are short"
        yield check(name, octets >= SOCKET_BUFFER_OCTETS_WANTED, f"{octets} octets", advice, required=False)
    cores = len(os.sched_getaffinity(0))
    yield check("cores", cores >= CORES_WANTED, str(cores), "rates above 1 Gb/s need two or more", required=False)
    flags = _cpu_flags()
    slow_codec, slow_crc = "the codec takes a slower kernel", "the NIC's CRC takes longer"
    for name, needs, advice in (
        ("AVX-512 VBMI2", {"avx512_vbmi2"}, slow_codec),
        ("AVX2 and FMA", {"avx2", "fma"}, slow_codec),
        ("PCLMULQDQ", {"pclmulqdq", "sse4_2"}, slow_crc),
    ):
        seen = "there" if needs <= flags else "missing"
        yield check(name, needs <= flags, seen, advice, required=False)
    yield _codec_kernel()


def _codec_kernel() -> Check:
    try:
        from netoffload.codec.kernels import KERNEL  # here, because it takes half a second to import
    except NetOffloadError as error:
        return check("codec kernel", False, str(error), "unset NETOFFLOAD_KERNEL")
    return check("codec kernel", True, KERNEL, "")


def _cpu_flags() -> set[str]:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return set(line.partition(":")[2].split())
    return set()


def _python_packages() -> Iterator[Check]:
    yield check("Python", sys.version_info >= (3, 11), platform.python_version(), "use Python 3.11 or newer")
    nic = importlib.util.find_spec("netoffload_daemon") is not None
    yield check("NIC program", nic, "there" if nic else "missing", "pip install -e . in the checkout, once more")
    for name, extra in EXTRAS.items():
        there = importlib.util.find_spec(name) is not None
        advice = f"pip install 'netoffload[{extra}]'"
        yield check(name, there, "there" if there else "missing", advice, required=False)
