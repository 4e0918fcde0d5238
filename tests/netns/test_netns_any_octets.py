"""Programs that nobody changed, through NICs that tag every connection and give back every bit."""

import contextlib
import gzip
import io
import random
import shutil
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from netoffload.lab.testbed import NicSettings, Testbed
from tests.netns.programs.both_ways import carried_to, connected
from tests.shared.beds import built, counters, drops, flows

DRAW = np.random.default_rng(32)
WORDS = 300_001
PORT = 7022
UNTAGGED = 0


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    with built(nic=NicSettings("exact", tag="any")) as bed:
        yield bed


def array_file(values: np.ndarray[tuple[int], np.dtype[np.generic]]) -> bytes:
    written = io.BytesIO()
    np.save(written, values)
    return written.getvalue()


def database() -> bytes:
    """Return the pages of a SQLite database."""
    draw = random.Random(3)
    with contextlib.closing(sqlite3.connect(":memory:")) as base:
        base.execute("create table people (name text, age int, weight real, picture blob)")
        rows = ((f"name {number}", number % 99, draw.random(), draw.randbytes(60)) for number in range(10_000))
        base.executemany("insert into people values (?, ?, ?, ?)", rows)
        base.commit()
        return base.serialize()


def weights() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return DRAW.normal(0, 0.05, WORDS).astype(np.float32)


RAW: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: gzip.compress(DRAW.normal(0, 1, WORDS).astype(np.float16).tobytes(), 1),
    "sqlite": database,
    "float64": lambda: array_file(DRAW.normal(0, 1, WORDS)),
    "text": lambda: "".join(path.read_text() for path in sorted(Path("docs").rglob("*.md"))).encode(),
}
SHORTER: dict[str, tuple[Callable[[], bytes], float]] = {
    "float32": (lambda: array_file(weights()), 1.12),
    "float32 behind an odd header": (lambda: b"seven: " + weights().tobytes(), 1.12),
    "bf16": (lambda: array_file((weights().view(np.uint32) >> 16).astype(np.uint16)), 1.3),
    "zeros": (lambda: bytes(4 * WORDS), 50.0),
}


@pytest.mark.parametrize("name", RAW)
def test_what_does_not_get_shorter_crosses_raw(bed: Testbed, name: str) -> None:
    octets = RAW[name]()
    got, compressed_octets = carried_to(bed, PORT, octets, UNTAGGED)
    assert got == octets
    assert compressed_octets < 0.3 * len(octets)


@pytest.mark.parametrize("name", SHORTER)
def test_floats_get_shorter_without_a_tag(bed: Testbed, name: str) -> None:
    octets, ratio = SHORTER[name][0](), SHORTER[name][1]
    before = counters(bed)
    got, compressed_octets = carried_to(bed, PORT, octets, UNTAGGED)
    after = counters(bed)
    assert got == octets
    assert compressed_octets > 0.9 * len(octets)
    assert compressed_octets > ratio * (after["tx_payload_octets"] - before["tx_payload_octets"])
    assert drops(after) == drops(before)


def test_a_stream_of_everything_arrives(bed: Testbed) -> None:
    parts = [make() for make in RAW.values()] + [make() for make, _ in SHORTER.values()]
    octets = b"?".join(parts)
    got, compressed_octets = carried_to(bed, PORT, octets, UNTAGGED)
    assert got == octets
    assert 0.2 * len(octets) < compressed_octets < 0.95 * len(octets)


def test_short_messages_both_ways_arrive(bed: Testbed) -> None:
    with connected(bed, PORT, (UNTAGGED, UNTAGGED)) as (near, far):
        for number in range(200):
            word = DRAW.bytes(number)
            near.sendall(word + b"\n")
            got = b""
            while not got.endswith(word + b"\n"):
                got += far.recv(1000)
            assert got == word + b"\n"
            far.sendall(got)
            assert near.recv(len(got), socket.MSG_WAITALL) == got


@pytest.mark.skipif(not shutil.which("sshd") or not shutil.which("scp"), reason="sshd and scp are not installed")
def test_ssh_and_scp_are_unchanged(bed: Testbed, tmp_path: Path) -> None:
    n0, n1 = bed.plan.nodes[:2]
    sent, got = tmp_path / "sent", tmp_path / "got"
    sent.write_bytes(RAW["text"]() + weights().tobytes())
    with server(bed, tmp_path):
        ways = [*("-F", "/dev/null", "-i", str(tmp_path / "key"), "-o", "BatchMode=yes"), "-o", "LogLevel=ERROR"]
        ways += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        here = ["ip", "netns", "exec", n0.netns]
        said = subprocess.run(
            [*here, "ssh", *ways, "-p", str(PORT), f"root@{n1.address}", f"cat {sent}"], capture_output=True, timeout=60
        )
        assert (said.stderr, said.stdout == sent.read_bytes()) == (b"", True)
        words = [*here, "scp", "-q", *ways, "-P", str(PORT), str(sent), f"root@{n1.address}:{got}"]
        subprocess.run(words, check=True, timeout=60)
    assert got.read_bytes() == sent.read_bytes()
    mine = [flow for flow in flows(bed) if flow["dport"] == PORT]
    assert mine


@contextlib.contextmanager
def server(bed: Testbed, folder: Path) -> Iterator[None]:
    """An SSH server on n1 that lets the key ``key`` in."""
    n1 = bed.plan.nodes[1]
    for name in ("host", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    options = {
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "key.pub",
        "ListenAddress": n1.address,
        "Port": PORT,
        "StrictModes": "no",
        "PermitRootLogin": "yes",
        "PidFile": "none",
        "Subsystem": "sftp internal-sftp",
    }
    config = folder / "sshd_config"
    config.write_text("".join(f"{name} {value}\n" for name, value in options.items()))
    words = ["ip", "netns", "exec", n1.netns, shutil.which("sshd") or "sshd", "-D", "-e", "-f", str(config)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert "listening" in line, line
            yield
        finally:
            process.terminate()
            process.wait()


def test_ports_narrow_any_with_a_lossless_codec_too() -> None:
    with built(nic=NicSettings("exact", tag="any", ports="7100-7110")) as bed:
        octets = weights().tobytes()
        got, compressed_octets = carried_to(bed, 7103, octets, UNTAGGED)
        assert (got == octets, compressed_octets > 0.9 * len(octets)) == (True, True)
        assert carried_to(bed, 7111, octets, UNTAGGED) == (octets, 0)
