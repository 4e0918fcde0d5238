"""All floats, and payloads at the edge of memory: short runs, and that both find errors."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from netoffload.codec import CODECS, Codec, get, reference
from netoffload.codec_specs import CodecId
from netoffload.compiled.jit import JIT_DISABLED
from netoffload.errors import RunError, UsageError
from tests.fuzz import floats, payloads
from tests.fuzz.__main__ import main
from tests.fuzz.batches import BATCH
from tests.shared.commands import started
from tests.shared.guarded import guarded_octets
from tests.shared.pool import in_order

AROUND_2_TO_MINUS_10 = 0x3A800000 - 2048
COUNT = 64 if JIT_DISABLED else 4096


Spoil = Callable[[str, Callable[[np.ndarray], np.ndarray]], None]


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Spoil:
    """A function that lets a codec's function return something else."""

    def change_result(name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
        right = getattr(Codec, name)
        monkeypatch.setattr(Codec, name, lambda *arguments: change(right(*arguments)))

    return change_result


def flip_one_bit(result: np.ndarray) -> np.ndarray:
    result.reshape(-1).view(np.uint8)[-1] ^= 1
    return result


@pytest.mark.parametrize("codec", CODECS.values(), ids=[codec.name for codec in CODECS.values()])
@pytest.mark.parametrize("first", [0, AROUND_2_TO_MINUS_10, 0x3F7FFF00, 0x7F7FFF00, 0xBB800000, 0xFFFFFF00])
def test_a_range_of_every_codec_agrees(codec: Codec, first: int) -> None:
    count = min(COUNT, floats.ALL - first)
    assert floats.check_range(codec, 10, first, count) is None


@pytest.mark.parametrize("bound_k", range(1, 17))
def test_the_edges_of_bounded_agree_for_every_bound(bound_k: int) -> None:
    for edge in (2.0**-bound_k, 127.5 * 2.0 ** (1 - bound_k), 0.5, 1.0):
        first = (int(np.float32(edge).view(np.uint32)) & ~7) - COUNT // 2
        assert floats.check_range(get("bounded"), bound_k, first, COUNT) is None


@pytest.mark.parametrize("what", ["encode", "decode", "round_trip"])
def test_one_wrong_bit_is_found(what: str, spoil: Spoil) -> None:
    spoil(what, flip_one_bit)
    mismatch = floats.check_range(get("bounded"), 10, AROUND_2_TO_MINUS_10, COUNT)
    assert mismatch is not None
    assert mismatch.what == {"encode": "payload", "decode": "decoded", "round_trip": "round trip"}[what]
    assert AROUND_2_TO_MINUS_10 <= mismatch.bits < AROUND_2_TO_MINUS_10 + COUNT
    assert mismatch.expected != mismatch.got
    if what == "round_trip":
        assert mismatch.bits == AROUND_2_TO_MINUS_10 + COUNT - 1
        assert int(mismatch.expected, 16) ^ int(mismatch.got, 16) == 1 << 24


def test_a_payload_cut_short_is_found(spoil: Spoil) -> None:
    spoil("encode", lambda payload: payload[:-1])
    mismatch = floats.check_range(get("bounded"), 10, AROUND_2_TO_MINUS_10, COUNT)
    assert mismatch is not None
    assert mismatch.what == "payload"


def test_an_oracle_beyond_its_bound_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    good = get("bounded")
    oracle = reference.tagged(
        lambda values, _bound_k: reference.compress_bounded(values, 9),
        lambda tags, codes, _bound_k: reference.decompress_bounded(tags, codes, 9),
    )

    for name in ("encode", "decode", "round_trip"):  # both sides agree, on 2^-9 where 2^-10 was asked for
        right = getattr(Codec, name)
        monkeypatch.setattr(Codec, name, lambda *words, right=right: right(*words[:-1], words[-1] - 1))
    mismatch = floats.check_range(dataclasses.replace(good, oracle=oracle), 10, AROUND_2_TO_MINUS_10, 4096)
    assert mismatch is not None
    assert (mismatch.what, mismatch.bits, mismatch.expected) == ("error", 0x3A800001, "at most 2^-10")


@pytest.mark.slow
def test_processes_share_a_range_in_order() -> None:
    seen: list[int] = []
    first = AROUND_2_TO_MINUS_10
    assert floats.verify("inceptionn", 10, first=first, count=COUNT, jobs=2, on_progress=seen.append) is None
    assert seen == [COUNT]
    assert list(in_order(divmod, [(9, 4), (8, 4), (7, 4)], 2)) == [(2, 1), (2, 0), (1, 3)]


def test_a_process_that_dies_is_an_error() -> None:
    with pytest.raises(RunError, match="ended without an answer"):
        list(in_order(os._exit, [(3,)], 1))


@pytest.mark.parametrize(("first", "count"), [(4, 8), (0, 0), (-8, 8), (8, 1 << 32)])
def test_ranges_outside_are_refused(first: int, count: int) -> None:
    with pytest.raises(UsageError, match=r"2\^32"):
        floats.verify("inceptionn", 10, first=first, count=count)


@pytest.mark.skipif(JIT_DISABLED, reason="without compiled kernels nothing can leave an array")
@pytest.mark.parametrize("at", ["-1", "size"])
def test_a_guarded_array_ends_where_memory_ends(at: str) -> None:
    code = "from tests.shared.guarded import guarded_octets; import ctypes\n"
    code += "a = guarded_octets(100); size = a.size\n"
    code += f"print(size, flush=True); ctypes.string_at(a.ctypes.data + {at}, 1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "4096\n"
    assert done.returncode == -signal.SIGSEGV
    assert guarded_octets(4097).size == 8192


@pytest.mark.slow
def test_payloads_are_decoded_at_the_edge_of_memory() -> None:
    count = 300 if JIT_DISABLED else 20_000
    tally = payloads.fuzz_batches(5, 0, count)
    assert tally["accepted"] + tally["refused"] == count
    assert min(tally["accepted"], tally["refused"]) > count // 20
    assert payloads.fuzz_batches(5, 0, count) == tally


@pytest.mark.skipif(JIT_DISABLED, reason="a batch is 4096 payloads")
@pytest.mark.parametrize(
    ("first", "batches"), [(6, 4), (payloads._ORDER.index(CodecId.EXACT), 1)], ids=["without tags", "exact"]
)
def test_payloads_of_other_codecs_are_decoded_at_the_edge_of_memory(first: int, batches: int) -> None:
    tally = payloads.fuzz_batches(5, first, batches * BATCH)
    assert min(tally["accepted"], tally["refused"]) > BATCH // 5


@pytest.mark.parametrize(
    "words",
    [
        ("floats", "--codec", "zz"),
        ("floats", "--bound", "0"),
        ("floats", "--first", "4"),
        ("floats", "--count", "0"),
        ("payloads", "--jobs", "0"),
        ("payloads", "--count", "0"),
        ("payloads", "--seed", "-1"),
        ("frames", "--seed", "-1"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_checked(words: tuple[str, ...]) -> None:
    try:
        said = main(list(words))
    except SystemExit as ended:  # argparse has said why
        said = ended.code or 0
    assert said == 2 or isinstance(said, str)


@pytest.mark.slow
@pytest.mark.skipif(JIT_DISABLED, reason="the command line is tested compiled")
def test_what_a_person_types() -> None:
    words = ("--first", str(AROUND_2_TO_MINUS_10), "--count", "4096", "--jobs", "1", "--json")
    done = started("floats", "--codec", "bounded", "--bound", "14", *words, module="tests.fuzz")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [told[name] for name in ("codec", "k", "count", "wrong")] == ["bounded", 14, 4096, None]
