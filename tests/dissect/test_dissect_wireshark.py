"""The Lua dissector in tshark agrees with scapy's layers, and rebuilds the segments that the hosts see."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from netoffload.codec import CodecId, get
from netoffload.dissect import lua_path
from netoffload.dissect.capture import read_frames
from tests.dissect.captured import (
    REFUSED,
    TAKEN,
    VALUES,
    answer_of,
    changed_block,
    damaged,
    fragments,
    frames_of_a_connection,
    frames_of_both_directions,
    nonce_in,
    refused_block,
    write_capture,
    write_mutated,
)

AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
"""Some builds run no Lua for root."""

CRC_OK = "netoffload.crc.ok"
VERDICTS = {"1": "ok", "True": "ok", "0": "bad", "False": "bad", "": "unknown"}
"""What tsharks of different versions print of that field."""
FIELDS = (
    *("netoffload.codec", "netoffload.bound_k", "netoffload.head", "netoffload.tail", "netoffload.payload_len"),
    *("netoffload.gso_size", "netoffload.wire_len", "netoffload.crc.ok", "tcp.srcport", "tcp.dstport", "tcp.seq_raw"),
    *("netoffload.ratio", "netoffload.class_0", "netoffload.class_8", "netoffload.class_16", "netoffload.class_32"),
    "tcp.payload",
)

Tshark = Callable[..., str]


def captures() -> dict[str, list[bytes]]:
    """Connections from the first frame on and from a later one, with damage, and with MACs."""
    both, blocks = frames_of_both_directions(), frames_of_a_connection()[2:]
    return {
        "both": [*both, damaged(both[2])],
        "later": both[2:],
        "one-way": [damaged(blocks[0]), *blocks[1:], damaged(blocks[-1])],
        "mac": frames_of_a_connection(key=bytes(range(32))),
        "mac-in-udp": frames_of_a_connection(in_udp=True, key=bytes(range(32))),
        "packed": frames_of_a_connection(codec=CodecId.PACKED),
    }


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that nobody may read as well; pytest's own may not be entered."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        shutil.copy(lua_path(), path)
        write_capture(path / "wire.pcap")
        write_mutated(path / "mutated.pcap", path / "wire.pcap", 600)
        wrpcap(str(path / "refused.pcap"), [answer_of(), *(refused_block(what) for what in REFUSED)])
        wrpcap(str(path / "taken.pcap"), [answer_of(), *(changed_block({}, *fields) for fields, _ in TAKEN.values())])
        wrpcap(str(path / "fragments.pcap"), fragments())
        _, answer, bundle = frames_of_a_connection(in_udp=True, bundles=True)
        wrpcap(str(path / "bundle.pcap"), [Ether(answer), Ether(bundle)])
        for name, frames in captures().items():
            wrpcap(str(path / f"{name}.pcap"), [Ether(frame) for frame in frames])
        for file in path.iterdir():
            file.chmod(0o644)
        yield path


@pytest.fixture(scope="module")
def tshark(folder: Path) -> Tshark:
    """A function from arguments to what tshark prints, with the dissector loaded."""
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed")
    if "without Lua" in subprocess.run(["tshark", "--version"], capture_output=True, text=True, check=True).stdout:
        pytest.skip("this tshark was built without Lua")
    command = ["tshark", "-n", "-X", f"lua_script:{folder / lua_path().name}"]

    def run(*words: str, prefix: list[str]) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "HOME": "/"}  # no settings of whoever runs this test
        return subprocess.run([*prefix, *command, *words], capture_output=True, text=True, timeout=60, env=env)

    probe = ("-r", str(folder / "wire.pcap"), "-c", "1", "-T", "fields", "-e", "netoffload.codec")
    prefix = next((prefix for prefix in ([], AS_NOBODY) if run(*probe, prefix=prefix).returncode == 0), None)
    if prefix is None:
        pytest.fail(f"tshark does not load the dissector: {run(*probe, prefix=[]).stderr}")

    def printed(*words: str) -> str:
        done = run(*words, prefix=prefix)
        assert done.returncode == 0, done.stderr
        assert "Lua Error" not in done.stdout + done.stderr
        return done.stdout

    return printed


@pytest.mark.slow
def test_fields_are_those_of_the_layers(tshark: Tshark, folder: Path) -> None:
    words = [word for field in FIELDS for word in ("-e", field)]
    lines = tshark("-r", str(folder / "wire.pcap"), "-Y", "netoffload", "-T", "fields", *words).splitlines()
    blocks = [frame for frame in read_frames(folder / "wire.pcap", with_values=True) if frame.kind == "block"]
    assert len(lines) == len(blocks) > 10
    for line, block in zip(lines, blocks, strict=True):
        got = dict(zip(FIELDS, line.split("\t"), strict=True))
        assert block.codec is not None
        whole = [int(get(block.codec).codec_id), block.bound_k, block.head, block.tail, block.raw_len]
        whole += [block.gso_size, block.payload_len, block.sport, block.dport, block.seq]
        assert [int(got[field]) for field in FIELDS[:11] if field != CRC_OK] == whole
        assert VERDICTS[got[CRC_OK]] == block.crc
        assert float(got["netoffload.ratio"]) == pytest.approx(block.ratio, rel=1e-5)
        shares = [got[field] for field in FIELDS[12:16]]
        if block.classes is None:
            assert shares == [""] * 4
        else:
            total = sum(block.classes)
            assert [float(share) for share in shares] == pytest.approx([n / total for n in block.classes], rel=1e-5)
        if block.values is None:
            assert got["tcp.payload"] == ""  # a bad CRC: nothing is decoded
        else:
            octets = bytes.fromhex(got["tcp.payload"])
            assert len(octets) == block.raw_len
            floats = np.frombuffer(octets[: block.values.nbytes], np.uint32)
            assert np.array_equal(floats, block.values.view(np.uint32))


@pytest.mark.slow
def test_the_stream_is_what_the_receiver_gets(tshark: Tshark, folder: Path) -> None:
    followed = tshark("-r", str(folder / "wire.pcap"), "-q", "-z", "follow,tcp,raw,0")
    octets = bytes.fromhex("".join(line for line in followed.splitlines() if set(line) <= set("0123456789abcdef")))
    wanted = get("inceptionn").round_trip(VALUES, 10).tobytes()
    assert octets == wanted


def test_other_frames_are_left_to_wireshark(tshark: Tshark, folder: Path) -> None:
    shown = tshark("-r", str(folder / "wire.pcap"), "-Y", "!netoffload", "-T", "fields", "-e", "_ws.col.Protocol")
    assert shown.split() == ["TCP", "TCP", "UDP", "TCP", "IPComp", "ARP"]


def test_a_bundle_shows_all_its_blocks(tshark: Tshark, folder: Path) -> None:
    words = (
        "-T",
        "fields",
        "-e",
        "netoffload.payload_len",
        "-e",
        "netoffload.crc.ok",
        "-e",
        "netoffload_udp.block_len",
    )
    (line,) = tshark("-r", str(folder / "bundle.pcap"), "-Y", "netoffload", *words).splitlines()
    lengths, sound, entries = (field.split(",") for field in line.split("\t"))
    blocks = [frame for frame in read_frames(folder / "bundle.pcap") if frame.kind == "block"]
    assert [int(length) for length in lengths] == [block.raw_len for block in blocks]
    assert len(blocks) == len(entries) > 3
    assert {word in ("1", "True") for word in sound} == {True}


@pytest.mark.slow
def test_what_a_nic_refuses_is_malformed(tshark: Tshark, folder: Path) -> None:
    words = ("-Y", "netoffload.malformed", "-T", "fields", "-e", "frame.number", "-e", "netoffload.crc.ok")
    shown = tshark("-r", str(folder / "refused.pcap"), *words).splitlines()
    assert [line.split("\t")[0] for line in shown] == [str(number + 2) for number in range(len(REFUSED))]
    assert all(line.split("\t")[1] in ("1", "True") for line in shown)
    assert tshark("-r", str(folder / "refused.pcap"), "-T", "fields", "-e", "tcp.payload").split() == []
    assert len(tshark("-r", str(folder / "wire.pcap"), *words).splitlines()) == 0


def test_what_wireshark_puts_together_is_malformed_too(tshark: Tshark, folder: Path) -> None:
    words = ("-r", str(folder / "fragments.pcap"), "-T", "fields", "-e", "frame.number")
    assert tshark(*words, "-Y", "netoffload && netoffload.malformed").split() == ["2", "4"]
    assert tshark(*words, "-Y", "netoffload.malformed", "-o", "ip.defragment:FALSE").split()[0] == "1"


def test_damaged_frames_are_no_lua_errors(tshark: Tshark, folder: Path) -> None:
    shown = tshark("-r", str(folder / "mutated.pcap"), "-V")
    assert "CRC32C is wrong" in shown
    assert "Not a block that a NIC would take" in shown


@pytest.mark.slow
@pytest.mark.parametrize("passes", [(), ("-2",)])
@pytest.mark.parametrize("name", ["both", "later", "one-way", "mac", "mac-in-udp"])
def test_crcs_are_judged_as_by_the_layers(tshark: Tshark, folder: Path, name: str, passes: tuple[str, ...]) -> None:
    fields = [CRC_OK, "netoffload.crc.unknown", "netoffload.mac"]
    words = [word for field in fields for word in ("-e", field)]
    shown = tshark("-r", str(folder / f"{name}.pcap"), *passes, "-Y", "netoffload", "-T", "fields", *words)
    told = [line.split("\t") for line in shown.splitlines()]
    blocks = [frame for frame in read_frames(folder / f"{name}.pcap") if frame.kind == "block"]
    assert [VERDICTS[crc] for crc, _, _ in told] == [one.crc for one in blocks]
    assert [unknown != "" for _, unknown, _ in told] == [one.crc == "unknown" for one in blocks]
    assert {len(mac) for _, _, mac in told} == ({32} if name.startswith("mac") else {0})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values"), [("mac", "inceptionn"), ("mac-in-udp", "inceptionn"), ("packed", "bounded")]
)
def test_the_payload_of_every_form_of_a_block_is_decoded(tshark: Tshark, folder: Path, name: str, values: str) -> None:
    words = ("-Y", "netoffload", "-T", "fields", "-e", "tcp.payload")
    octets = bytes.fromhex("".join(tshark("-r", str(folder / f"{name}.pcap"), *words).split()))
    assert octets == get(values).round_trip(VALUES, 10).tobytes()


def test_groups_are_taken_and_counted_as_by_the_layers(tshark: Tshark, folder: Path) -> None:
    fields = [f"netoffload.class_{bits}" for bits in (0, 8, 16, 32)]
    words = [word for field in ["tcp.payload", *fields] for word in ("-e", field)]
    blocks = [frame for frame in read_frames(folder / "taken.pcap", with_values=True) if frame.kind == "block"]
    shown = tshark("-r", str(folder / "taken.pcap"), "-Y", "netoffload", "-T", "fields", *words).splitlines()
    assert len(shown) == len(blocks) == len(TAKEN)
    for line, block in zip(shown, blocks, strict=True):
        octets, *shares = line.split("\t")
        assert block.values is not None
        assert block.classes is not None
        assert bytes.fromhex(octets) == block.values.tobytes()
        assert [float(share) * block.values.size for share in shares] == pytest.approx(block.classes, rel=1e-5)


def test_the_capability_word_is_shown(tshark: Tshark, folder: Path) -> None:
    frames = captures()
    for name in ("both", "mac"):
        fields = ("-e", "netoffload_word.nonce", "-e", "netoffload_word.wants_mac")
        shown = tshark("-r", str(folder / f"{name}.pcap"), "-Y", "netoffload_word", "-T", "fields", *fields)
        told = [line.split("\t") for line in shown.splitlines()]
        assert [int(nonce, 16) for nonce, _ in told] == [nonce_in(frame) for frame in frames[name][:2]]
        assert {wants in ("1", "True") for _, wants in told} == {name == "mac"}
