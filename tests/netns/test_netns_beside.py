"""Ordinary programs through a pair of NICs, while tagged gradients cross beside them: not an octet of theirs changes.

``NETOFFLOAD_BESIDE_MB`` sets the megabytes that each program carries (default 20).
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from netoffload.codec import get
from netoffload.lab.bench.nic import checked
from netoffload.lab.testbed import Testbed
from netoffload.lab.testbed.stream import Payload, StreamResult, run_stream, write_payload
from tests.netns.programs.sshd import hosts
from tests.shared.beds import counters, drops

OCTETS = int(os.environ.get("NETOFFLOAD_BESIDE_MB", "20")) * 10**6
TIMEOUT_S = 60 + OCTETS / 2e6
GRADIENT_OCTETS = 40_000_000
SBIN = "/usr/sbin:/sbin:/usr/bin:/bin"
HTTP_PORT, IPERF_PORT = 8000, 5201


def program(name: str) -> str:
    """The path of a program that this test needs; skipped without it."""
    path = shutil.which(name) or shutil.which(name, path=SBIN)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@pytest.fixture
def sent(tmp_path: Path) -> Path:
    path = tmp_path / "sent.bin"
    path.write_bytes(np.random.default_rng(5).bytes(OCTETS))
    return path


@pytest.fixture
def payload(tmp_path: Path) -> Payload:
    folder = tmp_path / "payload"
    folder.mkdir()
    values = np.random.default_rng(6).normal(0, 2e-3, 500_000).astype(np.float32)
    return write_payload(values, get("inceptionn"), 10, folder)


@pytest.fixture
def beside(nic_bed: Testbed, payload: Payload) -> Iterator[list[StreamResult]]:
    """Checked tagged streams from n0 to n1, one after the other, for as long as the test runs; one at least."""
    results: list[StreamResult] = []
    errors: list[BaseException] = []
    enough = threading.Event()

    def stream() -> None:
        try:
            while not enough.is_set() or not results:
                results.append(checked(run_stream(nic_bed, payload, GRADIENT_OCTETS, tagged=True)))
        except BaseException as error:  # whatever it was, the test must fail with it
            errors.append(error)

    before = [drops(counters(nic_bed, node)) for node in (0, 1)]
    thread = threading.Thread(target=stream)
    thread.start()
    try:
        yield results
    finally:
        enough.set()
        thread.join()
    assert errors == []
    assert results
    assert [drops(counters(nic_bed, node)) for node in (0, 1)] == before


def start(bed: Testbed, argv: list[str]) -> subprocess.Popen[bytes]:
    return bed.popen(1, argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def run_patiently(bed: Testbed, argv: list[str]) -> str:
    """Run a client on n0, again while its server does not listen yet; return what it wrote."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        pipe = subprocess.PIPE
        with bed.popen(0, argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True) as client:
            try:
                out, err = client.communicate(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                client.kill()
                raise
        if client.returncode == 0 and "unable to connect" not in out:
            return str(out)
        assert "refused" in (out + err).lower(), out + err
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_scp_beside_tagged_traffic(nic_bed: Testbed, beside: list[StreamResult], sent: Path, tmp_path: Path) -> None:
    with hosts(nic_bed, tmp_path):
        copy = [program("scp"), "-F", str(tmp_path / "ssh_config"), str(sent), f"n1:{tmp_path / 'got.bin'}"]
        run_patiently(nic_bed, copy)
    assert sha256(tmp_path / "got.bin") == sha256(sent)


def test_http_beside_tagged_traffic(nic_bed: Testbed, beside: list[StreamResult], sent: Path, tmp_path: Path) -> None:
    served = [sys.executable, "-m", "http.server", str(HTTP_PORT), "--directory", str(sent.parent)]
    url = f"http://{nic_bed.plan.nodes[1].address}:{HTTP_PORT}/{sent.name}"
    fetch = (
        "import shutil, sys, urllib.request as r; shutil.copyfileobj(r.urlopen(sys.argv[1]), open(sys.argv[2], 'wb'))"
    )
    with start(nic_bed, served) as server:
        try:
            run_patiently(nic_bed, [sys.executable, "-c", fetch, url, str(tmp_path / "got.bin")])
        finally:
            server.terminate()
    assert sha256(tmp_path / "got.bin") == sha256(sent)


def test_iperf3_beside_tagged_traffic(nic_bed: Testbed, beside: list[StreamResult], tmp_path: Path) -> None:
    """iperf3's own file transfer loses octets on any link; its repeated digits show every changed one.

    A write that the kernel took in part is followed by digits from 0 again. The server stops reading when the client
    says that it has sent everything, so that the last octets may be missing.
    """
    iperf3 = program("iperf3")
    address, port, got = nic_bed.plan.nodes[1].address, str(IPERF_PORT), tmp_path / "got.bin"
    with start(nic_bed, [iperf3, "-s", "-p", port, "-F", str(got)]) as server:
        try:
            client = [iperf3, "-c", address, "-p", port, "-n", str(OCTETS), "--repeating-payload", "--json"]
            said = json.loads(run_patiently(nic_bed, client))
        finally:
            server.terminate()
    assert said["end"]["sum_sent"]["bytes"] >= OCTETS
    digits = np.fromfile(got, np.uint8) - ord("0")
    assert digits.size > OCTETS / 4
    assert digits.max() == 9
    restarts = digits[1:][digits[1:] != (digits[:-1] + 1) % 10]
    assert not restarts.any()
    assert restarts.size < 1e-3 * digits.size
