"""``netoffload verify codec``: a short run on every codec, and that it finds one wrong bit of either direction."""

import json
import re
from typing import Any

import numpy as np
import pytest

from netoffload.codec import CODECS, Codec, get, verify
from netoffload.compiled.jit import JIT_DISABLED
from netoffload.errors import CodecError
from tests.shared.commands import netoffload, refusal

COUNT = 2000 if JIT_DISABLED else verify.BLOCK + 1000


def test_every_codec_is_the_oracles() -> None:
    done = netoffload("verify", "codec", "--count", str(COUNT), "--bound", "12", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["count"], told["k"]) == (0, COUNT, 12)
    assert told["wrong"] == {codec.name: None for codec in CODECS.values()}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("encode", "the payload of 2000 floats from number 0 on is not the oracle's"),
        ("decode", r"0x\w{8} is decoded as 0x(\w{8}), and the oracle's is 0x(?!\1)"),
        ("round_trip", r"0x\w{8} is rounded as 0x(\w{8}), and the oracle's is 0x(?!\1)"),
    ],
)
def test_one_wrong_bit_is_found(name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(Codec, name)

    def wrong(self: Codec, *arguments: Any) -> np.ndarray:
        result = right(self, *arguments).copy()
        result.view(np.uint8)[-1] ^= 1
        return np.asarray(result)

    monkeypatch.setattr(Codec, name, wrong)
    done = netoffload("verify", "codec", "--codec", "bounded", "--count", "2000")
    assert done.returncode == 1
    assert re.search(f"^bounded k=10 .*: {said}", done.stdout)


def test_a_payload_that_is_refused_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> np.ndarray:
        raise CodecError("no")

    monkeypatch.setattr(Codec, "decode", refuse)
    assert (
        verify.first_difference(get("bounded"), 10, 8, 1) == "the payload of 8 floats from number 0 on is refused: no"
    )


def test_the_edges_of_every_exponent_and_gradients_are_among_the_floats() -> None:
    seen: list[int] = []
    assert verify.first_difference(get("inceptionn"), 10, COUNT, 1, seen.append) is None
    assert seen[-1] == COUNT
    words = verify._drawn(0, 2000, 1).view(np.uint32)
    assert {0, 1, 0x80000000, 0x3F800000, 0x7F800000, 0x7F800001, 0xFF800000, 0x007FFFFF} <= set(map(int, words))
    later = np.abs(verify._drawn(verify.BLOCK, 2000, 1)[::2])
    assert 1e-7 < np.median(later) < 0.1


@pytest.mark.parametrize("words", [("--codec", "zz"), ("--bound", "0"), ("--bound", "17"), ("--count", "0")])
def test_what_cannot_be_is_refused_before_anything_is_checked(words: tuple[str, ...]) -> None:
    assert "checking" not in refusal("verify", "codec", *words)
