"""The soak: a few rounds with every event, and nothing left behind however it ends."""

import json
import os
import socket
import subprocess
import sys

import pytest

from netoffload.lab.testbed import Testbed, state_root
from netoffload.netlink import NETNS_DIR, Namespace
from tests.shared.beds import built
from tests.soak import run
from tests.soak.damage import Damage, damaged_switch, nft_path
from tests.soak.events import Events, ip
from tests.soak.run import Soak

COMMAND = [sys.executable, "-m", "tests.soak", "--flows", "3", "--seed", "12"]


def left() -> set[str]:
    """Runs and their namespaces."""
    runs = set(os.listdir(state_root())) if state_root().exists() else set()
    return {name for name in os.listdir(NETNS_DIR) if any(run in name for run in runs)} | runs


def test_a_few_rounds_are_told_as_json() -> None:
    before = left()
    done = subprocess.run([*COMMAND, "--rounds", "3"], capture_output=True, text=True, timeout=110)
    told = json.loads(done.stdout)
    assert (told["seed"], told["rounds"], told["codec"]) == (12, 3, "inceptionn")
    assert sum(told["events"].values()) == 3
    assert told["flows"] >= 3
    assert told["values"] > 100_000
    assert told["compressed_share"] > 0
    assert (told["wrong"], told["stuck"], told["broken"], told["examples"]) == (0, 0, 0, [])
    assert done.returncode == 0
    assert "seed 12" in done.stderr
    assert "3/3 " in done.stderr
    assert left() == before


def test_a_flow_that_stands_still_over_a_whole_path_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path is not whole here, and the soak is not told."""
    monkeypatch.setattr(run, "STUCK_S", 3.0)

    def cut(events: Events) -> tuple[str, str]:
        ip("-n", events.bed.plan.switch_netns, "link", "set", "p0", "down")
        return "cut", "for good"

    monkeypatch.setattr(Events, "next", cut)
    with built() as bed:
        found = Soak(bed, seed=2).run(rounds=1, flows=2)
    assert (found.stuck, found.wrong, found.is_good) == (2, 0, False)
    assert dict(found.events) == {"cut": 1}


@pytest.mark.skipif(nft_path() is None, reason="nft is not installed: nothing can happen at the switch")
@pytest.mark.parametrize(
    ("damage", "times"), [(Damage(loss=1), 0), (Damage(duplication=1), 2), (Damage(reordering=1), 1)]
)
def test_damage_at_the_switch_hits_every_frame_it_should(plain_bed: Testbed, damage: Damage, times: int) -> None:
    n0, n1 = plain_bed.plan.nodes[:2]
    with (
        damaged_switch(plain_bed.plan) as switch,
        Namespace.open(n0.netns) as here,
        Namespace.open(n1.netns) as there,
        here.call(datagrams) as sender,
        there.call(datagrams) as receiver,
    ):
        receiver.bind((n1.address, 7999))
        sender.sendto(b"first", (n1.address, 7999))  # both know the other's hardware address now
        assert receiver.recv(100) == b"first"
        switch.set_damage(damage)
        for number in range(20):
            sender.sendto(bytes((number,)), (n1.address, 7999))
        got = [receiver.recv(100) for _ in range(20 * times)]
        switch.set_damage(Damage())
        sender.sendto(b"last", (n1.address, 7999))
        assert receiver.recv(100) == b"last"
    assert sorted(got) == sorted(times * [bytes((number,)) for number in range(20)])
    if damage.reordering:
        assert got != sorted(got)


def datagrams() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(5)
    return sock
