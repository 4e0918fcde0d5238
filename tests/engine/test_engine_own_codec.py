"""A new codec needs two files of the package if it has no tags, three if it has tags, and no other."""

from pathlib import Path

import pytest

from netoffload import codec_specs
from netoffload.codec import kernels
from netoffload.codec_specs import SPECS, CodecId, Tagged
from netoffload.compiled.jit import JIT_DISABLED
from netoffload.errors import UsageError
from tests.engine.changed_copy import HERE, Changes, run_with

MEMBER = "    NONE = 0\n"
ROW = "    CodecSpec(CodecId.NONE, Cut(32)),\n"
ORACLE = "\n\ndef oracle_of("

ROUNDED = {
    "codec_specs.py": (
        (MEMBER, f"{MEMBER}    ROUNDED = 9\n"),
        (
            ROW,
            f"{ROW}    CodecSpec(CodecId.ROUNDED, Made(16, lambda word, k: word + 0x7FFF + (word >> 16 & 1) >> 16,"
            " lambda code, k: code << 16)),\n",
        ),
    ),
    "codec/reference.py": (
        (
            ORACLE,
            """

def _bfloat16(values, bound_k):
    words = values.view(np.uint32).astype(np.uint64)
    below, above = words & 0xFFFF0000, (words & 0xFFFF0000) + 0x10000
    odd = below >> 16 & 1
    up = (words - below) * 2 + odd > above - below
    return np.where(up, above, below).astype(np.uint32).view(np.float32)


ORACLES[CodecId.ROUNDED] = Oracle(
    encode=lambda values, k: np.pad(
        _bfloat16(values, k).view(np.uint16)[1::2], (0, -values.size % 8)
    ).view(np.uint8),
    decode=lambda payload, count, k: (payload.view(np.uint16)[:count].astype(np.uint32) << 16).view(np.float32),
    round_trip=_bfloat16,
)
"""
            + ORACLE,
        ),
    ),
}
"""A codec without tags: bfloat16, rounded to nearest even."""

COARSE = {
    "codec_specs.py": (
        (MEMBER, f"{MEMBER}    COARSE = 9\n"),
        (ROW, f"{ROW}    CodecSpec(CodecId.COARSE, Tagged(places8=(3, 0))),\n"),
    ),
    "codec/tagged.py": (
        (
            '"""The tagged codecs."""\n',
            """

@inlined_with
def _coarse_limits(bound_k):
    return scalar.bounded_limits(4)


ARITHMETIC[CodecId.COARSE] = ARITHMETIC[CodecId.BOUNDED]._replace(limits=_coarse_limits)
""",
        ),
    ),
    "codec/reference.py": (
        (
            ORACLE,
            """
ORACLES[CodecId.COARSE] = tagged(
    lambda values, k: compress_bounded(values, 4), lambda tags, codes, k: decompress_bounded(tags, codes, 4)
)
"""
            + ORACLE,
        ),
    ),
}
"""A codec with tags: ``bounded`` that always has the bound 2^-4."""


@pytest.mark.skipif(JIT_DISABLED, reason="the process that it starts compiles nothing")
@pytest.mark.parametrize(
    ("changes", "files"),
    [pytest.param(ROUNDED, 2, id="untagged"), pytest.param(COARSE, 3, id="tagged", marks=pytest.mark.slow)],
)
def test_a_codec_of_ones_own_crosses_two_nics(changes: Changes, files: int, tmp_path: Path) -> None:
    name = "rounded" if changes is ROUNDED else "coarse"
    assert len(changes) == files
    assert run_with(changes, tmp_path, str(HERE / "programs" / "own_codec.py"), name) == f"{name} is codec 9\n"


def test_a_codec_without_an_oracle_or_a_row_fails_at_import(tmp_path: Path) -> None:
    without_oracle = {"codec_specs.py": ROUNDED["codec_specs.py"]}
    said = run_with(without_oracle, tmp_path, "-c", "import netoffload.codec")
    assert "codec rounded has no oracle: add one to netoffload.codec.reference" in said
    *most, last = SPECS.values()
    with pytest.raises(ValueError, match=last.codec_id.name):
        codec_specs._checked(*most)
    with pytest.raises(ValueError, match=last.codec_id.name):
        codec_specs._checked(*most, last, last)
    with pytest.raises(ValueError, match="a code of 9 bits cannot be packed"):
        codec_specs.Cut(9)


def test_a_tagged_codec_without_arithmetic_is_refused() -> None:
    with pytest.raises(UsageError, match=r"codec none has no arithmetic: add it to netoffload\.codec\.tagged"):
        kernels._tagged_kernels(CodecId.NONE, Tagged(places8=(3, 0)), kernels.KERNEL)
