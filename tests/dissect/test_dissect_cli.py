"""``netoffload dissect`` on captures of both formats, on damaged ones, and on files that are no captures."""

import gzip
import itertools
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.utils import PcapNgWriter, PcapReader, PcapWriter, wrpcap

from netoffload.cli import app
from netoffload.codec import CODECS, get
from netoffload.dissect import lua_path
from netoffload.dissect.capture import Frame, read_frames
from netoffload.errors import UsageError
from tests.dissect.captured import (
    REFUSED,
    VALUES,
    answer_of,
    damaged,
    fragments,
    frames_of_a_connection,
    frames_of_both_directions,
    refused_block,
    write_capture,
    write_mutated,
)
from tests.shared.commands import PYTHONPATH


class Dissect:
    """The command in this process: what it prints, and the error it ends with."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> str:
        app(["dissect", *words], standalone_mode=False)
        printed = self._capsys.readouterr()
        assert printed.err == ""
        return printed.out


@pytest.fixture
def dissect(capsys: pytest.CaptureFixture[str]) -> Dissect:
    return Dissect(capsys)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("capture") / "wire.pcap"
    write_capture(path)
    return path


def test_one_line_per_frame_and_a_sum_per_flow(capture: Path, dissect: Dissect) -> None:
    lines = dissect(str(capture)).splitlines()
    frames = list(read_frames(capture))
    assert [int(line.split()[0]) for line in lines[: len(frames)]] == [frame.number for frame in frames]
    assert "seq 1000 S  NIC decodes none, inceptionn, bounded" in lines[0]
    assert "10.9.0.1:40000 -> 10.9.0.2:5001  seq 1001 A  " in lines[2]
    assert " inceptionn k=10 " in lines[2]
    assert lines[2].endswith(" of 0/8/16/32 bit  crc ok")
    bad = next(line for line in lines if line.endswith("crc bad"))
    assert bad.split()[0] == str(next(frame.number for frame in frames if frame.crc == "bad"))
    sums = lines[len(frames) :]
    assert len(sums) == 4
    assert f"{len(VALUES) * 4:,} octets as " in sums[0]
    assert sums[0].endswith("; 1 bad blocks")
    both = "[fd00:98:ffff::1]:40000 -> [fd00:98:ffff:0:8000::2]:5001"
    blocks = len(CODECS) + 1  # the last one in UDP
    assert sums[2].startswith(f"{both}: {blocks} blocks, {1200 * blocks:,} octets as ")
    assert [line.split("crc ")[1] for line in lines if f"{both}  seq" in line] == ["unknown", *["ok"] * (blocks - 1)]
    assert sums[3] == "10.9.0.3:1 -> 10.9.0.1:2: raw 5 octets in 1 frames"


@pytest.mark.parametrize("suffix", [".pcap", ".pcapng"])
def test_json_with_values(tmp_path: Path, dissect: Dissect, suffix: str) -> None:
    path = tmp_path / f"wire{suffix}"
    packets = write_capture(path)
    told = json.loads(dissect(str(path), "--json", "--values"))
    assert [frame["kind"] for frame in told["frames"][:2]] == ["offer", "offer"]
    assert [frame["frame_len"] for frame in told["frames"]] == [len(packet) for packet in packets]
    assert told["frames"][1]["time_s"] == pytest.approx(0.001)
    good = [frame for frame in told["frames"] if frame["kind"] == "block" and frame["src"] == "10.9.0.1"]
    values = [x for frame in good if frame["crc"] == "ok" for x in frame["values"]]
    assert np.array_equal(np.array(values, np.float32), get("inceptionn").round_trip(VALUES, 10), equal_nan=True)
    assert values[2:4] == ["inf", "nan"]
    flow = told["flows"][0]
    assert (flow["raw_octets"], flow["bad_blocks"], sum(flow["classes"])) == (VALUES.nbytes, 1, VALUES.size)
    assert flow["ratio"] == flow["raw_octets"] / flow["payload_octets"]


def test_limit_and_values_as_text(capture: Path, dissect: Dissect) -> None:
    lines = dissect(str(capture), "--limit", "3", "--values").splitlines()
    assert lines[3].split() == ["0", "0", "inf", "nan", "1", "-2.5", "0", "0.75"]
    assert sum("seq" in line for line in lines) == 3


def test_a_short_snap_length_leaves_sizes_and_judges_nothing(tmp_path: Path, capture: Path) -> None:
    path = tmp_path / "short.pcap"
    with PcapReader(str(capture)) as reader, PcapWriter(str(path)) as writer:
        for packet in reader:
            octets = bytes(packet)
            cut = Ether(octets[:108])
            cut.wirelen = len(octets)
            writer.write(cut)
    whole, short = list(read_frames(capture)), list(read_frames(path))
    assert [frame.frame_len for frame in short] == [frame.frame_len for frame in whole]
    for one, other in zip(whole, short, strict=True):
        if one.kind == "block":
            assert (other.raw_len, other.payload_len, other.seq) == (one.raw_len, one.payload_len, one.seq)
            assert (other.crc, other.fault, other.classes) == (None, None, None)


def test_what_a_nic_refuses_has_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "refused.pcap"
    wrpcap(str(path), [answer_of(), *(refused_block(what) for what in REFUSED)])
    offer, *frames = read_frames(path, with_values=True)
    assert offer.kind == "offer"
    for frame, (said, *_) in zip(frames, REFUSED.values(), strict=True):
        assert frame.fault is not None
        assert frame.fault.endswith(said)
        assert (frame.crc, frame.values, frame.classes) == ("ok", None, None)


def judged(path: Path, frames: list[bytes]) -> list[str | None]:
    """What is said of the CRC of each block among frames."""
    wrpcap(str(path), [Ether(frame) for frame in frames])
    return [frame.crc for frame in read_frames(path) if frame.kind == "block"]


def test_the_nonce_of_each_direction_is_in_the_handshake(tmp_path: Path) -> None:
    frames = frames_of_both_directions()
    assert judged(tmp_path / "whole.pcap", frames) == ["ok"] * 4
    assert judged(tmp_path / "bad.pcap", [*frames[:2], damaged(frames[2]), *frames[3:]]) == ["bad", *["ok"] * 3]


def test_a_handshake_that_stands_behind_its_blocks_judges_them(tmp_path: Path) -> None:
    syn, answer, *blocks = frames_of_both_directions()
    assert judged(tmp_path / "bursts.pcap", [*blocks, syn, answer]) == ["ok"] * 4
    assert judged(tmp_path / "bad.pcap", [damaged(blocks[0]), *blocks[1:], syn, answer]) == ["bad", *["ok"] * 3]


def test_without_the_handshake_the_first_block_of_a_direction_is_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "wire.pcap"
    both = frames_of_both_directions()[2:]
    assert judged(path, both) == ["unknown", "unknown", "ok", "ok"]
    blocks = frames_of_a_connection()[2:]
    assert len(blocks) > 3
    others = ["ok"] * (len(blocks) - 2)
    assert judged(path, [*blocks, damaged(blocks[-1])]) == ["unknown", "ok", *others, "bad"]
    assert judged(path, [damaged(blocks[0]), *blocks[1:]]) == ["unknown", "unknown", *others]
    wrpcap(str(path), [Ether(blocks[0])])
    (frame,) = read_frames(path, with_values=True)
    assert frame.values is not None


def test_blocks_with_a_mac_say_so(tmp_path: Path, dissect: Dissect) -> None:
    path = tmp_path / "wire.pcap"
    wrpcap(str(path), [Ether(frame) for frame in frames_of_a_connection(key=bytes(32))])
    offers: list[Frame] = []
    blocks: list[Frame] = []
    for frame in read_frames(path):
        (offers if frame.kind == "offer" else blocks).append(frame)
    assert [frame.peer_wants_mac for frame in offers] == [True, True]
    assert {(frame.crc, frame.has_mac, frame.fault) for frame in blocks} == {("ok", True, None)}
    lines = dissect(str(path)).splitlines()
    assert lines[0].endswith("(version 3), only with a MAC")
    assert lines[2].endswith("crc ok, MAC")


def test_fragments_of_ipcomp_have_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "fragments.pcap"
    wrpcap(str(path), fragments())
    frames = list(read_frames(path))
    assert {frame.crc for frame in frames} == {None}
    assert [(frame.kind, frame.fault) for frame in frames] == [("block", "a fragment"), *[("other", "a fragment")] * 3]
    other = Ether() / IP(src="10.9.0.1", dst="10.9.0.2", frag=9, proto=17) / b"of a datagram of others"
    wrpcap(str(path), [other])
    assert [frame.fault for frame in read_frames(path)] == [None]


def test_no_octet_of_a_frame_can_break_it(capture: Path, tmp_path: Path) -> None:
    """Flip, cut and overwrite what was captured: every frame is still a record."""
    path = tmp_path / "mutated.pcap"
    write_mutated(path, capture, 400)
    frames: list[Frame] = list(read_frames(path, with_values=True))
    assert len(frames) == 400
    assert all(json.dumps(frame.to_json()) for frame in frames)


@pytest.mark.parametrize("content", [b"", b"\xd4\xc3", b"no capture at all, but a text of some length", None])
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_what_is_no_capture_is_an_error(
    tmp_path: Path, dissect: Dissect, capsys: pytest.CaptureFixture[str], content: bytes | None, options: tuple[str]
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=str(path)):
        dissect(str(path), *options)
    assert capsys.readouterr().out == ""


def test_a_compressed_capture_that_is_cut_is_an_error_behind_what_it_holds(tmp_path: Path, capture: Path) -> None:
    path = tmp_path / "cut.pcap.gz"
    whole = gzip.compress(capture.read_bytes(), 0)
    path.write_bytes(whole[:-20])
    frames = read_frames(path)
    assert next(frames).number == 1
    with pytest.raises(UsageError, match=r"cannot be read behind frame \d+: .* end-of-stream"):
        list(frames)


@pytest.mark.parametrize(
    ("kind", "left_octets"),
    [*itertools.product(["pcap"], [4, 12, 16, 30]), *itertools.product(["pcapng"], [2, 4, 8, 12, 30, -4, -1])],
)
def test_a_capture_that_ends_inside_a_record_is_an_error_behind_what_it_holds(
    tmp_path: Path, kind: str, left_octets: int
) -> None:
    path = tmp_path / f"cut.{kind}"
    lens = []
    for packets in (1, 2):
        with (PcapNgWriter if kind == "pcapng" else PcapWriter)(str(path)) as writer:
            writer.write([Ether() / IP() / TCP()] * packets)
        assert len(list(read_frames(path))) == packets
        lens.append(path.stat().st_size)
    cut_len = lens[left_octets < 0] + left_octets
    os.truncate(path, cut_len)
    assert lens[0] < cut_len < lens[1]
    frames = read_frames(path)
    assert next(frames).number == 1
    with pytest.raises(UsageError, match="cannot be read behind frame 1: the file ends inside a record"):
        next(frames)


def ng_block(kind: int, body: bytes) -> bytes:
    length = struct.pack("<I", len(body) + 12)
    return struct.pack("<I", kind) + length + body + length


NG_HEAD = ng_block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)) + ng_block(1, struct.pack("<HHI", 1, 0, 0))


def ng_packet(interface: int = 0) -> bytes:
    frame = bytes(Ether() / IP() / TCP() / b"12")
    assert len(frame) % 4 == 0
    return ng_block(6, struct.pack("<5I", interface, 0, 0, len(frame), len(frame)) + frame)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (bytes(64), "a record is damaged"),  # of a file whose pages were not written before a crash
        (ng_block(6, bytes(8)), "a record is damaged"),
        (ng_block(1, b""), "a record is damaged"),
        (ng_packet(interface=3), "a packet is of interface 3, which the file does not describe"),
    ],
)
def test_damage_inside_a_pcapng_is_an_error_behind_what_is_before(tmp_path: Path, damage: bytes, says: str) -> None:
    path = tmp_path / "damaged.pcapng"
    path.write_bytes(NG_HEAD + ng_packet() + damage + ng_packet())
    frames = read_frames(path)
    assert next(frames).number == 1
    with pytest.raises(UsageError, match=f"cannot be read behind frame 1: {says}"):
        next(frames)


def test_blocks_that_are_no_packets_are_passed_over_and_a_simple_packet_is_whole(tmp_path: Path) -> None:
    frame, path = bytes(Ether() / IP(src="10.0.0.1") / TCP()), tmp_path / "odd.pcapng"
    simple = ng_block(3, struct.pack("<I", len(frame)) + frame + bytes(-len(frame) % 4))  # no limit: snap length 0
    path.write_bytes(NG_HEAD + ng_block(0x80000001, b"odd!") + simple + ng_block(5, bytes(12)))
    assert [one.src for one in read_frames(path)] == ["10.0.0.1"]


def test_a_compressed_capture_with_a_wrong_sum_is_an_error(tmp_path: Path, capture: Path) -> None:
    path = tmp_path / "wrong.pcap.gz"
    whole = bytearray(gzip.compress(capture.read_bytes()))
    whole[-8] ^= 1
    path.write_bytes(whole)
    with pytest.raises(UsageError, match="cannot be read behind frame"):
        list(read_frames(path))


def process(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "netoffload", "dissect", *words]
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, **more}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False)


@pytest.mark.slow
def test_a_capture_comes_through_a_pipe(capture: Path, dissect: Dissect) -> None:
    command = [sys.executable, "-m", "netoffload", "dissect", "-", "--limit", "3"]
    done = subprocess.run(command, stdin=capture.open("rb"), capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == dissect(str(capture), "--limit", "3")


@pytest.mark.slow
def test_without_scapy_it_says_what_to_install(tmp_path: Path, capture: Path) -> None:
    (tmp_path / "scapy.py").write_text("raise ModuleNotFoundError('not here', name='scapy')")
    paths = os.pathsep.join([str(tmp_path), PYTHONPATH])
    done = process(str(capture), PYTHONPATH=paths)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "netoffload: this needs scapy, which is not installed: pip install 'netoffload[dissect]'\n"
    assert process("--lua", PYTHONPATH=paths).returncode == 0


def test_lua_says_where_the_dissector_is(dissect: Dissect) -> None:
    path, *hints = dissect("--lua").splitlines()
    assert Path(path) == lua_path()
    assert Path(path).exists()
    assert any(f"lua_script:{path}" in hint for hint in hints)
    assert json.loads(dissect("--lua", "--json")) == {"lua": path}
