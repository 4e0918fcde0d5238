"""Which streams count as floats: the compiled judgement against its slow definition, and on real data."""

import gzip
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netoffload.compiled.arrays import Uint8Array, readable
from netoffload.compiled.jit import JIT_DISABLED
from netoffload.engine import judgement
from netoffload.engine.judgement import FLOATS, JUDGE_FIELDS, NOT_FLOATS, UNDECIDED
from tests.engine import judgement_corpus as corpus
from tests.engine import judgement_oracle as oracle
from tests.engine.frames import make_segment, tcp_of
from tests.engine.nic_pair import FIRST, connected
from tests.shared.example_counts import examples
from tests.shared.quick_cases import NIGHT

Octets = Uint8Array

DATA = Path(os.environ.get("NETOFFLOAD_DATA", "/usr/local/share/netoffload-data"))
"""Holds ``mnist/`` (IDX files) and ``cifar10-subset/`` (one .npz)."""

STARTS = (*range(16), 337, 512, 1024, 2049, 4099, 8190, 12345)
HOLDS_FLOATS = {"length and floats", "lengths and floats", "npy", "safetensors", "WAV of float32", "pickle of an array"}
"""Their first octets say that they are files; what comes later is an array of float32, and is rightly found to be."""
ONLY_WHOLE_WORDS = {"ja utf-32-le", "ja utf-32-be", "float32, big-endian", "BGRA"}
"""If one to three octets are missing at the front, they look like float32."""

real_data = pytest.mark.skipif(JIT_DISABLED, reason="asks whether the limits are good, compiled or not")

WORDS_OF_INTEREST = (
    0, 1, 0x007FFFFF, 0x00800000, 0x207FFFFF, 0x20800000, 0x277FFFFF, 0x27800000, 0x3F800000, 0x3F333333, 0x4BFFFFFF,
    0x4C000000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FC00001, 0x80000000, 0x80000001, 0xBF800000,
    0xFF800000, 0xFFC00000, 0xFFFFFFFF, 0x31000000, 0x3F000000, 0x3F803F80, 0x3F803F81, 0x30304000, 0x30303130,
    0x3B7D7C50, 0x353C2943, 0x302C302E, 0x74786574, 0x4F7FFFFF, 0x4F800000,
)  # fmt: skip


def judge(octets: bytes | Octets, start: int = 0, cuts: tuple[int, ...] = ()) -> int:
    """Return the verdict on what follows ``start``, in segments that end after so many octets."""
    array = readable(np.frombuffer(octets, np.uint8))
    row = np.zeros(JUDGE_FIELDS, np.int64)
    length = len(array) - start
    begin = 0
    for end in (*sorted(min(cut, length) for cut in cuts), length):
        judgement.weigh(row, array, start + begin, end - begin, begin, begin & 3)
        begin = end
    return int(judgement.verdict(row))


def streams() -> Iterator[bytes]:
    """Streams for the comparison with the oracle: 1 to 400 words, of every sort."""
    rng = np.random.default_rng(11)
    words = np.array(WORDS_OF_INTEREST, np.uint32)
    for word in words:
        yield word.tobytes()
        yield word.tobytes() * 300
        yield np.float32(0.1).tobytes() * 20 + word.tobytes() + np.float32(0.3).tobytes() * 300
    normal = rng.normal(0, 1, 400).astype("<f4")
    for count in range(8, 22):  # an integer among the first words; limits of odd ones and of text
        yield normal[:count].tobytes() + b"\x07\0\0\0" + normal.tobytes()
        yield bytes(40 * count) + normal[:120].tobytes()
        yield normal[:20].tobytes() + b"\0\0\0\x60" * count + normal.tobytes()
        yield normal[:20].tobytes() + b"\0\0\0\x3d" * (count + 18) + normal.tobytes()
        yield np.where((np.arange(400) % 2 == 0) | (np.arange(400) < 2 * count), normal, 0).astype("<f4").tobytes()
        yield (2.0**-49 * (1 + np.arange(120 + count) / 400)).astype("<f4").tobytes() + np.abs(normal).tobytes()
    for count in range(120, 136):  # of equal words, of words in one place, of tiny ones, of alike ones, of others
        yield np.where(np.arange(400) < count, np.float32(0.1), 0).tobytes()
        yield np.where((np.arange(400) < 2 * count) & (np.arange(400) % 2 == 0), 0, normal).tobytes()
        yield np.where(np.arange(400) < count, normal * np.float32(2.0**-48), normal).tobytes()
        yield (b"\1\x3f\x80\x3f\2\x40\x80\x3f" * count)[: 4 * (count - 14)] + normal.tobytes()
        yield (b"\0\x40\x80\x3f\0\x40\x81\x3f" * count)[: 4 * (count + 8)] + normal.tobytes()
        yield np.where(
            np.arange(400) < count, np.resize(np.array([2.0**20, 2.0**-24], "<f4"), 400), 1 + normal
        ).tobytes()
    for share in (0, 0.03, 0.06, 0.1, 0.3, 1):
        normal = rng.normal(0, 0.01, 400).astype("<f4").view("<u4")
        yield np.where(rng.random(400) < share, rng.choice(words, 400), normal).astype("<u4").tobytes()
    others = corpus.others()
    for name in list(others)[::3]:
        start = int(rng.integers(0, 2000))
        yield others[name][start : start + int(rng.integers(4, 1600))]
    for array in corpus.floats().values():
        yield np.asarray(array, "<f4").tobytes()[: int(rng.integers(4, 1600))]


@pytest.mark.slow
def test_agrees_with_the_oracle() -> None:
    said = set()
    for stream in itertools.islice(streams(), 0, None, 7 if JIT_DISABLED else 1 if NIGHT else 3):
        expected = oracle.judge(stream)
        assert judge(stream) == expected, stream.hex(" ", 4)
        said.add(expected)
    assert said == {UNDECIDED, FLOATS, NOT_FLOATS}


@pytest.mark.slow
@given(st.lists(st.sampled_from(WORDS_OF_INTEREST) | st.integers(0, 2**32 - 1), max_size=40), st.floats(1e-8, 1e3))
def test_agrees_with_the_oracle_on_words_among_floats(words: list[int], scale: float) -> None:
    values = (np.random.default_rng(7).normal(0, scale, 300)).astype("<f4").view("<u4")
    values[20 : 20 + 6 * len(words) : 6] = words
    assert judge(values.tobytes()) == oracle.judge(values.tobytes())
    stream = np.array(words, "<u4").tobytes()
    assert judge(stream) == oracle.judge(stream)


@given(st.deferred(lambda: st.sampled_from(sorted(corpus.floats()))), st.lists(st.integers(0, 600), max_size=12))
def test_segments_do_not_change_the_verdict(name: str, cuts: list[int]) -> None:
    octets = np.asarray(corpus.floats()[name], "<f4").tobytes()[:2400]
    assert judge(octets, 0, tuple(cuts)) == judge(octets)


def test_nothing_is_undecided_and_so_are_zeros() -> None:
    assert judge(b"") == UNDECIDED
    assert judge(bytes(1 << 16)) == UNDECIDED
    assert judge(b"\0\0\0\x80" * 1000) == UNDECIDED  # -0.0
    assert judge(bytes(1 << 14) + np.full(500, 0.25, "<f4").tobytes()) == FLOATS


@pytest.mark.slow
def test_a_verdict_is_final() -> None:
    floats = np.asarray(corpus.floats()["uniform 0..1"], "<f4").tobytes()
    text = corpus.others()["Python"]
    assert judge(floats[:1024]) == judge(floats[:1024] + text) == FLOATS
    assert judge(text[:1024] + floats) == NOT_FLOATS


def test_a_kilobyte_is_looked_at() -> None:
    floats = np.asarray(corpus.floats()["uniform 0..1"], "<f4").tobytes()
    assert judge(floats[:1020]) == UNDECIDED
    assert judge(floats[:1024]) == FLOATS


def test_few_values_among_zeros_are_not_enough() -> None:
    values = np.zeros(256, "<f4")
    values[::9] = 0.37 + np.arange(29) / 1000
    assert judge(values.tobytes()) == UNDECIDED


@real_data
def test_files_are_not_floats() -> None:
    streams = corpus.others()
    for name, stream in streams.items():
        assert judge(stream) == (NOT_FLOATS if any(stream) else UNDECIDED), name
    for name in streams.keys() - HOLDS_FLOATS:
        stream, step = streams[name], 4 if name in ONLY_WHOLE_WORDS else 1
        for start in (*STARTS, *range(1024, len(stream) - 2048, 2048 + step)):
            if start % step == 0 and start < len(stream):
                assert judge(stream, start) != FLOATS, (name, start)


@real_data
def test_arrays_are_floats() -> None:
    for name, array in corpus.floats().items():
        octets = np.asarray(array, "<f4").tobytes()
        for start in range(0, len(octets) // 2, 5000):
            assert judge(octets, start) == FLOATS, (name, start)


def test_values_that_are_text_stay_exact() -> None:
    """Known: 0.7 is ``333?``; an array of nothing else cannot be told from text. 0.9 is ``fff?``, which has letters."""
    said = [judge(np.full(1000, value, "<f4").tobytes()) for value in (0.7, 0.9)]
    assert said == [NOT_FLOATS, FLOATS]


def test_no_random_kilobyte_is_floats() -> None:
    octets = np.random.default_rng(12).integers(0, 256, 1024 * (500 if JIT_DISABLED else 20_000), np.uint8)
    assert all(judge(octets[at : at + 1024]) == NOT_FLOATS for at in range(0, len(octets), 1024))


def files_below(folder: str) -> Iterator[Path]:
    for below, folders, names in os.walk(folder):
        folders.sort()
        paths = (Path(below, name) for name in sorted(names))
        yield from (path for path in paths if path.is_file() and os.access(path, os.R_OK))


FILES = 3000


@real_data
@pytest.mark.parametrize("folder", ["/usr/bin", "/usr/share/doc", sys.prefix])
def test_no_file_of_this_machine_begins_as_floats(folder: str) -> None:
    for path in list(itertools.islice(files_below(folder), FILES))[:: FILES // examples(FILES)]:
        if "sample_data" in path.parts:  # matplotlib's, some of which are float32
            continue
        with path.open("rb") as file:
            assert judge(file.read(8192)) != FLOATS, path


@real_data
@pytest.mark.slow
def test_every_gradient_and_weight_of_our_networks_is_floats() -> None:
    torch = pytest.importorskip("torch")
    from netoffload.lab.training.config import TrainSettings
    from netoffload.lab.training.replica import Replica

    chance = torch.Generator().manual_seed(1)
    for model in ("hdc", "cnn"):
        replica = Replica(TrainSettings("inc+c", model=model, data="digits", nodes=1))
        for step in range(8):
            images = torch.rand(25, 784, generator=chance).clamp(min=0.5) - 0.5
            labels = torch.randint(0, 10, (25,), generator=chance)
            replica.backward(images, labels)
            for vector in (replica.gradient, replica.parameters):
                octets = vector.tobytes()
                said = {judge(octets, 4 * at) for at in range(0, len(vector) // 2, len(vector) // 20)}
                assert said == {FLOATS}, (model, step)
            replica.iteration = step
            replica.update()


@real_data
def test_mnist_and_cifar_are_floats() -> None:
    images = sorted(DATA.glob("mnist/t10k-images*.gz"))
    stored = sorted(DATA.glob("cifar10-subset/*.npz"))
    if not images or not stored:
        pytest.skip(f"no MNIST and CIFAR-10 in {DATA}: set NETOFFLOAD_DATA")
    grey = np.frombuffer(gzip.decompress(images[0].read_bytes()), np.uint8)[16:].reshape(-1, 784)[:500]
    with np.load(stored[0]) as file:
        colours: Any = file["x_test"][:500].transpose(0, 3, 1, 2).reshape(-1, 3072)
    for name, pixels, mean, deviation in (("mnist", grey, 0.1307, 0.3081), ("cifar10", colours, 0.4734, 0.2516)):
        for scaled in (pixels, pixels / 255, (pixels / 255 - mean) / deviation):
            said = [judge(image.astype("<f4").tobytes() * 2) for image in scaled]
            assert said.count(FLOATS) >= len(said) * 0.99, name
        assert judge(pixels.tobytes()) == NOT_FLOATS


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 63, 64, 65, 1460])
def test_is_all_zero(length: int) -> None:
    octets = np.full(length + 16, 255, np.uint8)
    for at in (0, 1, 10):
        octets[:] = 255
        octets[at : at + length] = 0
        assert judgement.is_all_zero(octets, at, length)
        for index in {0, length // 2, length - 1} - {-1} if length else ():
            octets[at + index] = 0x80
            assert not judgement.is_all_zero(octets, at, length)
            octets[at + index] = 0


def is_implausible(octets: bytes | Octets, at: int = 0) -> bool:
    array = readable(np.frombuffer(octets, np.uint8))
    return bool(judgement.is_implausible(array, at, (len(array) - at) // 4))


def strays() -> Iterator[bytes]:
    """What follows floats: 0 to 600 words of every sort, and mixtures at the limits."""
    rng = np.random.default_rng(12)
    words = np.array(WORDS_OF_INTEREST, np.uint32)
    normal = rng.normal(0, 0.01, 600).astype("<f4")
    yield b""
    for word in words:
        for count in (1, 2, 3, 4, 15, 16, 17, 255, 256, 257, 600):
            yield word.tobytes() * count
        for share in (1, 2, 3, 17, 18, 19, 128, 130, 131, 135, 137, 138):
            mixed = normal[:256].copy()
            mixed[1 : 1 + share] = word.view("<f4")
            yield np.append(mixed, normal[:100]).tobytes()
            yield np.append(normal[:300], mixed).tobytes()
            yield np.concatenate([normal, mixed, normal, normal[:100]]).tobytes()
    for _ in range(200):
        yield rng.choice(words, int(rng.integers(0, 600))).tobytes()
        spread = np.resize(normal, int(rng.integers(1000, 3000)))
        spread[rng.integers(0, len(spread), int(rng.integers(0, 400)))] = rng.choice(words).view("<f4")
        yield spread.tobytes()


@pytest.mark.slow
def test_what_follows_floats_agrees_with_the_oracle() -> None:
    said = set()
    for stream in itertools.islice(strays(), 0, None, 7 if JIT_DISABLED else 1):
        expected = oracle.is_implausible(stream)
        assert is_implausible(stream) == expected, stream[:80].hex(" ", 4)
        assert is_implausible(bytes(3) + stream, 3) == expected
        said.add(expected)
    assert said == {False, True}


@given(st.binary(max_size=2000).map(lambda octets: octets[: len(octets) & ~3]))
def test_any_octets_that_follow_floats_agree_with_the_oracle(octets: bytes) -> None:
    assert is_implausible(octets) == oracle.is_implausible(octets)


@real_data
def test_arrays_of_floats_stay_plausible_in_segments_of_any_length() -> None:
    for name, values in corpus.floats().items():
        octets = np.asarray(values, "<f4").tobytes()
        for length in (16, 64, 1448, 4000, 61_440):
            parts = range(0, min(len(octets), 200 * length) - length + 1, length)
            wrong = sum(is_implausible(octets[at : at + length]) for at in parts)
            assert wrong <= len(parts) // 1000, (name, length, wrong)


@real_data
@pytest.mark.parametrize(
    "name",
    [
        *("en utf-8", "ru utf-8", "zh utf-8", "ja utf-8", "json", "csv of zeros", "Python", "HTTP"),
        *("int8 large", "int16 small", "int32 ids", "int64 large", "Unix times", "array of doubles", "pickle"),
        *("random", "gzip", "zip", "tar", "tar.gz", "PDF", "TLS", "ssh", "git pack"),
    ],
)
def test_other_octets_behind_floats_are_noticed(name: str) -> None:
    octets = corpus.others()[name]
    assert all(is_implausible(octets[at : at + 1448]) for at in range(0, 30 * 1448, 1448) if len(octets) > at + 1448)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("P|};", False),  # 0x3b7d7c50, 0.0039, from a gradient of HDC on MNIST
        ("$CT5", False),
        (".0,0", True),  # a table of zeros
        ("    ", True),
        ("text", True),
        ("P|}A", True),
    ],
)
def test_a_gradient_that_repeats_a_word_of_text_stays_plausible(word: str, expected: bool) -> None:
    row = np.zeros(784, "<f4")  # of a first layer: few pixels are bright
    row[100:400:25] = np.frombuffer(word.encode(), "<f4")
    assert is_implausible(row.tobytes()) == oracle.is_implausible(row.tobytes()) == expected
    assert is_implausible(row.tobytes() * 10) == oracle.is_implausible(row.tobytes() * 10) == expected


def test_a_flow_that_counts_as_floats_no_more_may_do_so_again() -> None:
    floats = np.random.default_rng(8).normal(0, 0.01, 600).astype("<f4").tobytes()
    text = b"Some text in between, which no codec may touch. " * 20
    row = np.zeros(JUDGE_FIELDS, np.int64)
    judgement.judge_again(row, 100)
    array = np.frombuffer(text + floats, np.uint8)
    judgement.weigh(row, array, 0, len(text), 100, 0)
    assert judgement.verdict(row) == UNDECIDED, "text is not final any more"
    judgement.weigh(row, array, len(text), 1000, 100 + len(text), 0)
    assert judgement.verdict(row) == UNDECIDED, "less than a kilobyte of floats"
    judgement.weigh(row, array, len(text) + 1000, 600, 100 + len(text) + 1000, 0)
    assert judgement.verdict(row) == FLOATS


def test_segments_of_a_flow_that_is_judged_again_count_as_exact_until_floats_come() -> None:
    client, server = connected()
    floats = np.random.default_rng(8).normal(0, 0.01, 1000).astype("<f4").tobytes()
    tiny = np.random.default_rng(9).normal(0, 1e-25, 1000).astype("<f4").tobytes()  # of a saturated softmax
    seq, arrived = FIRST, b""
    for payload in (floats, tiny, tiny, floats, floats):
        frames = client.from_host(make_segment(payload, seq=seq, flags="A"))
        arrived += b"".join(tcp_of(one)[1] for one in server.from_wire(frames))
        seq += len(payload)
        client.from_wire(server.from_host(make_segment(flags="A", seq=6, ack=seq, to_client=True)))
    counts = client.counts()
    kinds = ("bypass_undecided", "bypass_exact", "tx_rejudged")
    assert {kind: counts.get(kind, 0) for kind in kinds} == dict(zip(kinds, (0, 2, 1), strict=True))
    assert len(arrived) == 5 * 4000


def test_octets_that_were_not_seen_are_not_put_into_words() -> None:
    floats = np.full(400, 0.3, "<f4").tobytes()
    row = np.zeros(JUDGE_FIELDS, np.int64)
    array = np.frombuffer(floats, np.uint8)
    judgement.weigh(row, array, 0, 402, 0, 0)
    judgement.weigh(row, array, 405, 1195, 405, 1)  # three octets are missing
    assert judgement.verdict(row) == FLOATS
    assert row[judgement.JUDGED_WORDS] == 256
