"""0x28 is AF11, a class that others use for backups: data that is not float32 arrives as it was sent."""

import gzip
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.random import _generator

from netoffload.codec import get
from netoffload.lab.testbed import Testbed
from tests.netns.programs.both_ways import TAGGED, carried, connected
from tests.shared.beds import flows
from tests.soak import draw_values

OCTETS = 500_000
ROOT = Path(__file__).parents[2]
PORTS = itertools.count(7600)


def transfer(bed: Testbed, octets: bytes) -> tuple[bytes, int]:
    """Send octets from n0 to n1 and return what arrived, and how many of them n0's NIC compressed."""
    port = next(PORTS)
    with connected(bed, port, (TAGGED, TAGGED)) as ends:
        got = carried(*ends, octets)
    rows = [row for row in flows(bed) if (row["direction"], row["dport"]) == ("tx", port)]
    return got, sum(int(row["raw_octets"]) for row in rows)


def text() -> bytes:
    pages = b"".join(path.read_bytes() for path in sorted((ROOT / "docs").rglob("*.md")))
    return (pages * (OCTETS // len(pages) + 1))[:OCTETS]


def elf() -> bytes:
    with Path(_generator.__file__).open("rb") as file:
        octets = file.read(OCTETS)
    assert octets.startswith(b"\x7fELF")
    return octets


def wav() -> bytes:
    """One channel of a tone with noise, 16 bit, 48 kHz."""
    count = OCTETS // 2
    samples = 8000 * np.sin(np.arange(count) * 0.0576) + np.random.default_rng(1).normal(0, 300, count)
    header = b"RIFF" + (36 + 2 * count).to_bytes(4, "little") + b"WAVEfmt " + (16).to_bytes(4, "little")
    header += bytes.fromhex("0100 0100 80bb0000 00770100 0200 1000") + b"data" + (2 * count).to_bytes(4, "little")
    return header + bytes(samples.astype("<i2"))


def quiet_wav() -> bytes:
    """The same, as quiet as a room: high octets are 0x00 or 0xff."""
    samples = np.random.default_rng(2).normal(0, 40, OCTETS // 2).astype("<i2")
    return wav()[:44] + samples.tobytes()


def jpeg() -> bytes:
    """The beginning of a JFIF file, and octets as Huffman codes are: any, but no marker."""
    head = bytes.fromhex("ffd8ffe000104a46494600010101006000600000 ffdb0043 00") + bytes(range(64))
    scan = np.random.default_rng(3).bytes(OCTETS).replace(b"\xff", b"\xff\x00")
    return head + bytes.fromhex("ffda000801010000 3f00") + scan + b"\xff\xd9"


def utf16() -> bytes:
    return text().decode(errors="replace").encode("utf-16")


def zipped() -> bytes:
    return gzip.compress(np.random.default_rng(4).normal(0, 1, OCTETS // 8).astype(np.float32).tobytes() + text())


@pytest.mark.parametrize("make", [text, zipped, elf, wav, quiet_wav, utf16, jpeg])
def test_what_is_no_array_of_floats_arrives_unchanged(nic_bed: Testbed, make: Callable[[], bytes]) -> None:
    sent = make()
    got, _ = transfer(nic_bed, sent)
    assert len(got) == len(sent)
    changed = sum(left != right for left, right in zip(got, sent, strict=True))
    assert changed == 0, f"{changed} of {len(sent)} octets changed"


def digits() -> np.ndarray:
    """Images of 28 x 28 pixels, k/255, dark at their edges."""
    pixels = np.random.default_rng(5).integers(0, 256, (160, 28, 28))
    pixels[:, :, :6] = pixels[:, :, 22:] = pixels[:, :6] = pixels[:, 22:] = 0
    return (pixels / 255).astype(np.float32)


def layers() -> np.ndarray:
    """What a model begins with: convolutions, scales of ones, biases of zeros, in turn."""
    draw = np.random.default_rng(6)
    parts = [
        np.concatenate([draw.normal(0, 0.05, 864), np.ones(32), np.zeros(32), draw.uniform(-0.1, 0.1, 4096)])
        for _ in range(25)
    ]
    return np.concatenate(parts).astype(np.float32)


FLOATS: dict[str, Callable[[], np.ndarray]] = {
    **{
        name: (lambda name=name: draw_values(name, 125_000, 7))  # type: ignore[misc]
        for name in ("gradients", "wide", "unit", "sparse", "edge")
    },
    "tiny gradients": lambda: draw_values("gradients", 125_000, 8) * np.float32(1e-4),
    "weights of a wide layer": lambda: draw_values("wide", 125_000, 9) * np.float32(4),
    "zeros": lambda: np.zeros(125_000, np.float32),
    "digits": digits,
    "pictures": lambda: np.random.default_rng(10).integers(0, 256, 125_000).astype(np.float32) / np.float32(255),
    "normalised pictures": lambda: (draw_values("unit", 125_000, 11) - np.float32(0.449)) / np.float32(0.226),
    "layers": layers,
}


@pytest.mark.parametrize("name", FLOATS)
def test_arrays_of_floats_are_compressed(nic_bed: Testbed, name: str) -> None:
    values = FLOATS[name]().astype(np.float32).ravel()
    got, compressed = transfer(nic_bed, values.tobytes())
    bits, exact = np.frombuffer(got, np.uint32), values.view(np.uint32)
    rounded = get("inceptionn").round_trip(values, 10).view(np.uint32)
    assert ((bits == rounded) | (bits == exact)).all()
    # A flow may be exact until it is judged by its first kilobyte, which may be in a segment of 64 KiB.
    assert (bits != rounded)[65536 // 4 :].sum() == 0
    assert compressed > 0.85 * values.nbytes
