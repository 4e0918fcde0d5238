"""The end of a stream accepts only what was sent, or the codec's round trip of it, and tells them apart."""

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from netoffload.codec import get
from netoffload.errors import RunError
from netoffload.lab.testbed.stream import write_payload
from netoffload.lab.testbed.stream_end import End, Judge, Writer
from tests.shared.ports import free_port

FLOATS = 1000
SENT = np.random.default_rng(1).standard_normal(FLOATS, np.float32) * np.float32(2e-3)
ROUNDED = get("bounded").round_trip(SENT, 10)
SENT_BITS, ROUNDED_BITS = SENT.view(np.uint32), ROUNDED.view(np.uint32)
DIFFER = SENT_BITS != ROUNDED_BITS


def feed(sender: socket.socket, octets: bytes) -> None:
    sender.sendall(octets)
    sender.shutdown(socket.SHUT_WR)


def judged(
    octets: bytes,
    rotation: int = 0,
    piece: int = 1 << 20,
    rounded: np.ndarray = ROUNDED_BITS,
    *,
    has_end: bool = True,
) -> dict[str, Any]:
    """What a judge finds in octets that arrive in pieces."""
    judge = Judge(SENT_BITS, rounded, rotation)
    sender, receiver = socket.socketpair()
    with sender, receiver:
        feeding = threading.Thread(target=feed, args=(sender, octets))
        feeding.start()
        while count := receiver.recv_into(judge.room(piece)):
            judge.took(count)
        feeding.join()
    return judge.close(has_end=has_end)


def repeated(bits: np.ndarray, octets: int) -> bytearray:
    return bytearray(np.resize(bits.view(np.uint8), octets).tobytes())


@pytest.mark.parametrize("piece", [1, 3, 4, 1001, 1_000_000])
def test_every_float_is_judged_however_the_stream_is_cut(piece: int) -> None:
    found = judged(np.roll(np.tile(ROUNDED_BITS, 2), -300).tobytes(), rotation=300, piece=piece)
    assert (found["values"], found["rounded"]) == (2 * FLOATS, 2 * DIFFER.sum())
    assert (found["exact"], found["wrong"], found["tail_wrong"]) == (0, 0, 0)


@pytest.mark.parametrize("octets", [4, 4 * FLOATS - 4, 4 * FLOATS, 4 * FLOATS + 4, 40 * FLOATS])
@pytest.mark.parametrize("expected", [SENT_BITS, ROUNDED_BITS], ids=["untagged", "tagged"])
def test_what_must_come_is_accepted(expected: np.ndarray, octets: int) -> None:
    found = judged(bytes(repeated(expected, octets)), rounded=expected)
    assert (found["received_octets"], found["exact"], found["wrong"]) == (octets, 0, 0)


@pytest.mark.parametrize("at", [0, 401, 4 * FLOATS - 1, 4 * FLOATS + 9, 4 * (FLOATS + 100) - 1])
@pytest.mark.parametrize("expected", [SENT_BITS, ROUNDED_BITS], ids=["untagged", "tagged"])
def test_one_wrong_octet_anywhere_is_found(expected: np.ndarray, at: int) -> None:
    octets = repeated(expected, 4 * (FLOATS + 100))
    octets[at] ^= 0x11
    found = judged(bytes(octets), rounded=expected, piece=701)
    assert (found["wrong"], found["first_wrong"]) == (1, at // 4)
    [(index, sent, got, rounded)] = found["examples"]
    assert (index, sent, rounded) == (at // 4, *(f"{bits[at // 4 % FLOATS]:08x}" for bits in (SENT_BITS, expected)))
    assert got not in (sent, rounded)


def test_codec_output_is_wrong_when_untagged() -> None:
    assert judged(ROUNDED_BITS.tobytes(), rounded=SENT_BITS)["wrong"] == DIFFER.sum() > 0


def test_exact_values_count_apart_before_and_after_the_first_rounded_one() -> None:
    bits = np.concatenate([SENT_BITS[:100], ROUNDED_BITS[100:900], SENT_BITS[900:]])
    found = judged(bits.tobytes(), piece=40)
    assert found["exact"] == DIFFER[:100].sum() + DIFFER[900:].sum()
    assert found["exact_after_begun"] == DIFFER[900:].sum() > 0


def test_half_of_one_form_and_half_of_the_other_is_wrong() -> None:
    octets = ROUNDED_BITS.copy().view(np.uint8).reshape(-1, 4)
    at = int(np.flatnonzero((SENT_BITS & 0xFFFF != ROUNDED_BITS & 0xFFFF) & (SENT_BITS >> 16 != ROUNDED_BITS >> 16))[0])
    octets[at, :2] = SENT_BITS[at : at + 1].view(np.uint8)[:2]
    found = judged(octets.tobytes())
    assert (found["wrong"], found["first_wrong"]) == (1, at)


@pytest.mark.parametrize(("tail", "wrong"), [(0, 0), (1, 1)])
def test_odd_octets_at_the_end_must_be_exact(tail: int, wrong: int) -> None:
    octets = bytearray(SENT_BITS[:1].tobytes()[:3])
    octets[2] ^= tail
    assert judged(ROUNDED_BITS.tobytes() + octets)["tail_wrong"] == wrong


@pytest.mark.parametrize("octets", [1, 2, 3])
def test_a_stream_that_broke_off_may_end_within_a_rounded_float(octets: int) -> None:
    forms = [bits.view(np.uint8).reshape(-1, 4)[:, :octets] for bits in (SENT_BITS, ROUNDED_BITS)]
    at = int(np.flatnonzero((forms[0] != forms[1]).any(1))[0])
    sent, rounded = (form[at].tobytes() for form in forms)
    neither = rounded[:-1] + bytes([min({0, 1, 2} - {sent[-1], rounded[-1]})])
    tails, whole = (sent, rounded, neither), ROUNDED_BITS[:at].tobytes()
    assert [judged(whole + tail)["tail_wrong"] for tail in tails] == [0, 1, 1]
    assert [judged(whole + tail, has_end=False)["tail_wrong"] for tail in tails] == [0, 0, 1]


@pytest.mark.parametrize("writes", [None, [1, 7000, 3], [4, 4, 4]])
def test_a_writer_repeats_its_file_from_its_rotation(tmp_path: Path, writes: list[int] | None) -> None:
    SENT_BITS.tofile(tmp_path / "sent.bin")
    options = {"sent": str(tmp_path / "sent.bin"), "octets": 9001, "rotation": 300, "write_octets": writes, "seed": 3}
    writer, (sender, receiver) = Writer({**options, "whole": True}, threading.Event()), socket.socketpair()
    with sender, receiver:
        writing = threading.Thread(target=writer.run, args=(sender,))
        writing.start()
        got = b"".join(iter(lambda: receiver.recv(5000), b""))
        writing.join()
    assert (writer.sent_octets, len(got)) == (9004, 9004)
    assert got == bytes(repeated(np.roll(SENT_BITS, -300), 9004))


def ends(**options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of two ends on loopback."""
    common = {"address": "127.0.0.1", "port": free_port(), "tos": 0, "silence_s": 20, **options}
    return {**common, "role": "listen"}, {**common, "role": "connect"}


def test_two_ends_carry_a_stream_each_way_and_judge_both(tmp_path: Path) -> None:
    payload = write_payload(SENT, get("bounded"), 10, tmp_path)
    options = {"send": {"sent": str(payload.sent), "octets": 100_000}, "receive": payload.judged()}
    listens, connects = ends(**options)
    with End(subprocess.Popen, listens) as near:
        assert near.read(20) == {"ready": True}
        with End(subprocess.Popen, {**connects, "waits": True}) as far:
            assert far.read(20) == {"ready": True}
            far.go()
            results = [end.result(20) for end in (near, far)]
    for result in results:
        assert (result["sent_octets"], result["received_octets"], result["values"]) == (100_000, 100_000, 25_000)
        assert (result["exact"], result["rounded"], result["wrong"]) == (25 * DIFFER.sum(), 0, 0)
        assert 0 < result["start_s"] < result["end_s"]


def test_an_octet_to_and_fro_is_timed() -> None:
    listens, connects = ends(pings=20, nodelay=True)
    with End(subprocess.Popen, listens) as near:
        near.read(20)
        with End(subprocess.Popen, connects) as far:
            times_us = far.result(20)["rtt_us"]
    assert len(times_us) == 20
    assert min(times_us) > 0


@pytest.mark.slow
def test_a_stream_that_stops_is_an_error_and_so_is_an_end_that_cannot_start() -> None:
    listens, _ = ends(receive={})
    with End(subprocess.Popen, {**listens, "silence_s": 1}) as near, socket.socket() as silent:
        near.read(20)
        threading.Event().wait(1.2)  # the limit is a connection's, not the listener's
        silent.connect((listens["address"], listens["port"]))
        with pytest.raises(RunError, match="nothing came for 1 s"):
            near.result(20)
    with End(subprocess.Popen, {"role": "listen", "port": 1}) as broken, pytest.raises(RunError, match="address"):
        broken.result(20)


@pytest.mark.slow
@pytest.mark.parametrize(("is_ended", "wrong"), [(True, 1), (False, 0)])
def test_only_without_an_end_may_a_stream_stop_within_a_rounded_float(
    tmp_path: Path, is_ended: bool, wrong: int
) -> None:
    at = int(np.flatnonzero(SENT_BITS & 0xFFFFFF != ROUNDED_BITS & 0xFFFFFF)[0])
    receive = write_payload(SENT, get("bounded"), 10, tmp_path).judged() | {"rotation": at}
    listens, _ = ends(receive=receive)
    with End(subprocess.Popen, {**listens, "silence_s": 1}) as near, socket.socket() as sender:
        near.read(20)
        sender.connect((listens["address"], listens["port"]))
        sender.sendall(ROUNDED_BITS[at].tobytes()[:3])
        if is_ended:
            sender.shutdown(socket.SHUT_WR)
        assert near.process.stdout is not None
        lines = [json.loads(line) for line in near.process.stdout]
    assert lines[-1]["result"]["tail_wrong"] == wrong


@pytest.mark.slow
def test_an_end_ends_with_the_process_that_started_it() -> None:
    text = "import json, subprocess, sys, time; from netoffload.lab.testbed.stream_end import End\n"
    text += "end = End(subprocess.Popen, json.loads(sys.argv[1])); end.read(20)\n"
    text += "print(end.process.pid, flush=True); time.sleep(60)"
    command = [sys.executable, "-c", text, json.dumps(ends(receive={})[0])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert Path("/proc", str(pid)).exists()
        owner.kill()
        owner.wait()
    for _ in range(200):
        if not Path("/proc", str(pid)).exists():
            break
        threading.Event().wait(0.05)
    assert not Path("/proc", str(pid)).exists()
