"""The Lua dissector in tshark agrees with scapy's layers, and rebuilds the segments that the hosts see."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from netoffload.codec import CodecId, get
from netoffload.dissect import lua_path
from netoffload.dissect.capture import Frame, read_frames
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
Rows = list[list[str]]


def fields_of(run: Tshark, capture: Path, *fields: str, where: str = "netoffload", more: Sequence[str] = ()) -> Rows:
    """What tshark prints of these fields of the frames that its filter ``where`` passes, a row for each frame."""
    words = [word for field in fields for word in ("-e", field)]
    lines = run("-r", str(capture), *more, "-Y", where, "-T", "fields", *words).splitlines()
    return [line.split("\t") for line in lines]


def blocks_in(capture: Path) -> list[Frame]:
    return [frame for frame in read_frames(capture, with_values=True) if frame.kind == "block"]


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
    rows, blocks = fields_of(tshark, folder / "wire.pcap", *FIELDS), blocks_in(folder / "wire.pcap")
    assert len(rows) == len(blocks) > 10
    for row, block in zip(rows, blocks, strict=True):
        got = dict(zip(FIELDS, row, strict=True))
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
    shown = fields_of(tshark, folder / "wire.pcap", "_ws.col.Protocol", where="!netoffload")
    assert [protocol for (protocol,) in shown] == ["TCP", "TCP", "UDP", "TCP", "IPComp", "ARP"]


def test_a_bundle_shows_all_its_blocks(tshark: Tshark, folder: Path) -> None:
    fields = ("netoffload.payload_len", CRC_OK, "netoffload_udp.block_len")
    (row,) = fields_of(tshark, folder / "bundle.pcap", *fields)
    lengths, sound, entries = (field.split(",") for field in row)
    blocks = blocks_in(folder / "bundle.pcap")
    assert [int(length) for length in lengths] == [block.raw_len for block in blocks]
    assert len(blocks) == len(entries) > 3
    assert {word in ("1", "True") for word in sound} == {True}


@pytest.mark.slow
def test_what_a_nic_refuses_is_malformed(tshark: Tshark, folder: Path) -> None:
    fields, where = ("frame.number", CRC_OK), "netoffload.malformed"
    numbers, sound = zip(*fields_of(tshark, folder / "refused.pcap", *fields, where=where), strict=True)
    assert list(numbers) == [str(number + 2) for number in range(len(REFUSED))]
    assert {VERDICTS[crc] for crc in sound} == {"ok"}
    assert tshark("-r", str(folder / "refused.pcap"), "-T", "fields", "-e", "tcp.payload").split() == []
    assert fields_of(tshark, folder / "wire.pcap", *fields, where=where) == []


def test_what_wireshark_puts_together_is_malformed_too(tshark: Tshark, folder: Path) -> None:
    asked = tshark, folder / "fragments.pcap", "frame.number"
    assert fields_of(*asked, where="netoffload && netoffload.malformed") == [["2"], ["4"]]
    assert fields_of(*asked, where="netoffload.malformed", more=("-o", "ip.defragment:FALSE"))[0] == ["1"]


def test_damaged_frames_are_no_lua_errors(tshark: Tshark, folder: Path) -> None:
    shown = tshark("-r", str(folder / "mutated.pcap"), "-V")
    assert "CRC32C is wrong" in shown
    assert "Not a block that a NIC would take" in shown


@pytest.mark.slow
@pytest.mark.parametrize("passes", [(), ("-2",)])
@pytest.mark.parametrize("name", ["both", "later", "one-way", "mac", "mac-in-udp"])
def test_crcs_are_judged_as_by_the_layers(tshark: Tshark, folder: Path, name: str, passes: tuple[str, ...]) -> None:
    capture = folder / f"{name}.pcap"
    told = fields_of(tshark, capture, CRC_OK, "netoffload.crc.unknown", "netoffload.mac", more=passes)
    blocks = blocks_in(capture)
    assert [VERDICTS[crc] for crc, _, _ in told] == [one.crc for one in blocks]
    assert [unknown != "" for _, unknown, _ in told] == [one.crc == "unknown" for one in blocks]
    assert {len(mac) for _, _, mac in told} == ({32} if name.startswith("mac") else {0})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values"), [("mac", "inceptionn"), ("mac-in-udp", "inceptionn"), ("packed", "bounded")]
)
def test_the_payload_of_every_form_of_a_block_is_decoded(tshark: Tshark, folder: Path, name: str, values: str) -> None:
    octets = b"".join(bytes.fromhex(one) for (one,) in fields_of(tshark, folder / f"{name}.pcap", "tcp.payload"))
    assert octets == get(values).round_trip(VALUES, 10).tobytes()


def test_groups_are_taken_and_counted_as_by_the_layers(tshark: Tshark, folder: Path) -> None:
    fields = ("tcp.payload", *FIELDS[12:16])
    rows, blocks = fields_of(tshark, folder / "taken.pcap", *fields), blocks_in(folder / "taken.pcap")
    assert len(rows) == len(blocks) == len(TAKEN)
    for (octets, *shares), block in zip(rows, blocks, strict=True):
        assert block.values is not None
        assert block.classes is not None
        assert bytes.fromhex(octets) == block.values.tobytes()
        assert [float(share) * block.values.size for share in shares] == pytest.approx(block.classes, rel=1e-5)


def test_the_capability_word_is_shown(tshark: Tshark, folder: Path) -> None:
    frames = captures()
    for name in ("both", "mac"):
        fields = ("netoffload_word.nonce", "netoffload_word.wants_mac")
        told = fields_of(tshark, folder / f"{name}.pcap", *fields, where="netoffload_word")
        assert [int(nonce, 16) for nonce, _ in told] == [nonce_in(frame) for frame in frames[name][:2]]
        assert {wants in ("1", "True") for _, wants in told} == {name == "mac"}
