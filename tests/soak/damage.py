"""Loses, doubles and delays frames inside a testbed's switch, outside of both NICs.

Rules of nft look at every frame that arrives at a switch port (netdev ingress, before the bridge) and draw lots::

    p0 ──► nft: drop | dup to hold0 | fwd to hold0 | nothing ──► bridge ──► p1
                            │
                            └─► veth hold0 ─ held0 ─► Holder: waits some milliseconds ──────► p1

A frame that goes through the holder arrives late, behind frames sent after it; if a copy goes through it, the frame
arrives twice. Frames keep their virtio-net headers there, so segments with an unfinished checksum stay as they are.
"""

import contextlib
import heapq
import os
import random
import select
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from netoffload.errors import SystemRefusedError
from netoffload.lab.testbed.plan import MTU_MAX, Plan
from netoffload.netlink import Namespace
from netoffload.netlink.redirect import remove_link

NFT_SHARE: Final = 10_000
"""Number of lots: a share of frames is a number of these."""
HOLD_S: Final = (0.0005, 0.02)
"""Shortest and longest time that a frame is held; in the shorter one tens of frames pass at 1 Gb/s."""
HELD_MAX: Final = 4096
SOL_PACKET: Final = 263  # linux/socket.h
PACKET_VNET_HDR: Final = 15  # linux/if_packet.h
PACKET_OUTGOING: Final = 4
ETH_P_ALL: Final = 3  # linux/if_ether.h
FRAME_OCTETS_MAX: Final = 10 + 14 + 65_535 + 4
SBIN: Final = "/usr/sbin:/sbin:/usr/bin:/bin"


@dataclass(frozen=True)
class Damage:
    """Shares of frames, 0..1, that every port of the switch loses, doubles or delays."""

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0


def nft_path() -> str | None:
    return shutil.which("nft") or shutil.which("nft", path=SBIN)


class DamagedSwitch:
    """The switch of a testbed, whose ports to n0 and n1 can damage what arrives."""

    def __init__(self, plan: Plan) -> None:
        self._netns = plan.switch_netns
        self.ports = [node.port for node in plan.nodes[:2]]
        self.held_frames = 0

    def set_damage(self, damage: Damage) -> None:
        """Damage frames as ``damage`` says from this call on; without a share above 0 there is no rule."""
        rules = ["add table netdev soak", "delete table netdev soak"]
        if damage != Damage():
            rules.append("add table netdev soak")
            for index, port in enumerate(self.ports):
                hook = f'type filter hook ingress device "{port}" priority 0;'
                rules.append(f"add chain netdev soak {port} {{ {hook} }}")
                for share, verdict in (
                    (damage.loss, "drop"),
                    (damage.duplication, f'dup to "hold{index}"'),
                    (damage.reordering, f'fwd to "hold{index}"'),
                ):
                    lots = round(share * NFT_SHARE)
                    drawn = "" if lots >= NFT_SHARE else f"numgen random mod {NFT_SHARE} < {lots}"
                    if lots:
                        rules.append(f"add rule netdev soak {port} {drawn} counter {verdict}")
        run_nft(self._netns, "\n".join(rules))


@contextlib.contextmanager
def damaged_switch(plan: Plan, seed: int = 0) -> Iterator[DamagedSwitch]:
    """Make the way through the holder, for as long as the context lasts; ``seed`` decides how long frames are held."""
    switch = DamagedSwitch(plan)
    with Namespace.open(plan.switch_netns) as netns, contextlib.ExitStack() as stack:
        for index in (0, 1):
            netns.add_veth(f"hold{index}", f"held{index}", None, MTU_MAX)
            stack.callback(remove_link, netns, f"hold{index}")
            for end in ("hold", "held"):
                netns.set_up(f"{end}{index}")
        sockets = [stack.enter_context(netns.call(partial(_open, name))) for name in ("held0", "held1", *switch.ports)]
        stopped = os.eventfd(0)
        stack.callback(os.close, stopped)
        holding = threading.Thread(target=_hold, args=(switch, sockets, stopped, seed), name="hold-frames", daemon=True)
        holding.start()
        try:
            yield switch
        finally:
            os.eventfd_write(stopped, 1)
            holding.join()
            with contextlib.suppress(SystemRefusedError):
                switch.set_damage(Damage())


def _hold(switch: DamagedSwitch, sockets: Sequence[socket.socket], stopped: int, seed: int) -> None:
    """Take frames from the first two sockets, and give them late to the port at the other side."""
    draw, arrivals = random.Random(seed), {sockets[index].fileno(): index for index in (0, 1)}
    held: list[tuple[float, int, int, bytes]] = []
    while True:
        wait_s = max(held[0][0] - time.monotonic(), 0) if held else None
        readable = select.select([*arrivals, stopped], [], [], wait_s)[0]
        if stopped in readable:
            return
        for descriptor in readable:
            index = arrivals[descriptor]
            frame, sender = sockets[index].recvfrom(FRAME_OCTETS_MAX)
            if sender[2] != PACKET_OUTGOING and len(held) < HELD_MAX:
                switch.held_frames += 1
                heapq.heappush(held, (time.monotonic() + draw.uniform(*HOLD_S), switch.held_frames, index, frame))
        while held and held[0][0] <= time.monotonic():
            _, _, index, frame = heapq.heappop(held)
            with contextlib.suppress(OSError):  # the port is down, or its MTU has become smaller
                sockets[2 + (1 - index)].send(frame)


def run_nft(netns: str, rules: str) -> None:
    """Apply rules of nft in a namespace, all of them or none."""
    program = nft_path()
    if program is None:
        raise SystemRefusedError("the program nft is missing: install the package nftables")
    command = ["ip", "netns", "exec", netns, program, "-f", "-"]
    done = subprocess.run(command, input=rules + "\n", capture_output=True, text=True)
    if done.returncode:
        raise SystemRefusedError(f"nft refused its rules: {done.stderr.strip().splitlines()[0]}")


def _open(device: str) -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        sock.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        sock.bind((device, ETH_P_ALL if device.startswith("held") else 0))  # 0: it only sends
    except BaseException:
        sock.close()
        raise
    return sock
