"""An ordinary program through a pair of NICs, while tagged gradients cross beside it: not an octet of it changes.

``NETOFFLOAD_BESIDE_MB`` sets the megabytes that scp carries (default 20).
"""

import hashlib
import os
import threading
from pathlib import Path

import numpy as np

from netoffload.codec import get
from netoffload.lab.bench.nic import checked
from netoffload.lab.testbed import Testbed
from netoffload.lab.testbed.stream import StreamResult, run_stream, write_payload
from tests.netns.programs.sshd import hosts
from tests.shared.beds import counters, drops

OCTETS = int(os.environ.get("NETOFFLOAD_BESIDE_MB", "20")) * 10**6
GRADIENT_OCTETS = 40_000_000


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def test_scp_beside_tagged_traffic(nic_bed: Testbed, tmp_path: Path) -> None:
    sent, got, folder = tmp_path / "sent.bin", tmp_path / "got.bin", tmp_path / "payload"
    sent.write_bytes(np.random.default_rng(5).bytes(OCTETS))
    folder.mkdir()
    values = np.random.default_rng(6).normal(0, 2e-3, 500_000).astype(np.float32)
    payload = write_payload(values, get("inceptionn"), 10, folder)
    results: list[StreamResult] = []
    enough = threading.Event()

    def stream() -> None:
        while not enough.is_set() or not results:
            results.append(run_stream(nic_bed, payload, GRADIENT_OCTETS, tagged=True))

    before = [drops(counters(nic_bed, node)) for node in (0, 1)]
    thread = threading.Thread(target=stream)
    with hosts(nic_bed, tmp_path):
        thread.start()
        command = ["scp", "-F", str(tmp_path / "ssh_config"), str(sent), f"n1:{got}"]
        with nic_bed.popen(0, command) as copy:
            assert copy.wait(60 + OCTETS / 2e6) == 0
        enough.set()
        thread.join()
    assert sha256(got) == sha256(sent)
    assert results
    assert all(checked(result) for result in results)
    assert [drops(counters(nic_bed, node)) for node in (0, 1)] == before
