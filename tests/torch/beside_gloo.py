"""The backend against gloo: every call, on every type, in groups of several sizes, in the same processes.

Values that are only moved, or reduced without rounding, must have gloo's bits. Sums of floats must agree within their
rounding. Results that are the same on all ranks must have the same bits on each. In the end a rank kills itself, and
all others must name it.

``python -m tests.torch.beside_gloo -n 8``
"""

import argparse
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from tests.torch.gloo_cases import DTYPES, Case, Place, cases, objects
from tests.torch.programs.forked_group import error_of, everywhere, join, run_ranks, strike

SHAPES: Final = ((), (0,), (13,), (6, 5), (20011,))
"""A number, nothing, octets that do not fill whole words, a transposed matrix, and a vector too long to be short."""
QUICK_SHAPES: Final = ((0,), (6, 5), (9001,))
SIZES: Final = (2, 3, 4, 8)


@dataclass
class Row:
    """Results of one call on one type in one group, whose ranks are counted in the world.

    ``exact`` counts calls with all of gloo's bits. ``wrong`` has results that were neither exact nor within the
    rounding. ``bits`` is a checksum of results that must be the same on all ranks; 0 for other calls.
    """

    call: str
    dtype: str
    ranks: tuple[int, ...]
    tried: int = 0
    exact: int = 0
    wrong: list[str] = field(default_factory=list)
    bits: int = 0


def groups(asked: argparse.Namespace) -> list[tuple[int, ...]]:
    """Return the groups, as ranks counted in the world: the first ranks, and the odd ranks as one more."""
    sizes = () if asked.quick else SIZES
    whole = sorted({size for size in sizes if size < asked.ranks} | {asked.ranks})
    odd = tuple(range(1, asked.ranks, 2))
    return [tuple(range(size)) for size in whole] + ([odd] if len(odd) > 1 else [])


def take_part(asked: argparse.Namespace, rank: int, size: int, port: int) -> dict[str, Any]:
    """Be one rank; return the rows of all ranks, other differences, and the error of the last rank's death."""
    join(rank, size, port)
    rows: list[Row] = []
    wrong: list[str] = []
    for ranks in groups(asked):
        pair = [dist.new_group(list(ranks), backend=name) for name in ("netoffload", "gloo")]
        if rank in ranks:
            dtypes = [(name, getattr(torch, name)) for name in asked.dtype]
            tries = [(case, name) for case in cases() for name, dtype in dtypes if dtype in case.dtypes]
            rows += [try_case(case, name, ranks, pair, asked) for case, name in tries]
            found = [objects(group, ranks) for group in pair]
            wrong += [] if found[0] == found[1] else [f"objects in {ranks}: {found[0]} is not {found[1]}"]
    told = everywhere((rows, wrong))
    strike(size - 1)
    merged = [asdict(row) for row in _merged([rows for rows, _ in told])] if rank == 0 else []
    return {"rows": merged, "wrong": [text for _, texts in told for text in texts], "lost": error_of(_reduce_for_ever)}


def _reduce_for_ever() -> None:
    while True:
        dist.all_reduce(torch.ones(3))


def try_case(
    case: Case, dtype: str, ranks: tuple[int, ...], pair: Sequence[ProcessGroup], asked: argparse.Namespace
) -> Row:
    """Make a call on both groups with all shapes, and compare the results."""
    row, kind = Row(case.name, dtype, ranks), getattr(torch, dtype)
    for shape in QUICK_SHAPES if asked.quick else SHAPES:
        ours = case.tried(Place(pair[0], ranks, kind, shape, asked.seed))
        # Some of gloo's calls take no transposed tensors, and its reduce_scatter mixes their elements up.
        theirs = case.tried(Place(pair[1], ranks, kind, shape, asked.seed, is_plain=True))
        row.tried += 1
        if all(map(_same_bits, ours, theirs)) and len(ours) == len(theirs):
            row.exact += 1
        elif not case.is_rounded or not all(_is_close(a, b, len(ranks)) for a, b in zip(ours, theirs, strict=True)):
            row.wrong.append(f"shape {shape}: {ours} is not {theirs}"[:400])
        for tensor in ours if case.is_same else ():
            row.bits = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), row.bits)
    return row


def _same_bits(ours: Tensor, theirs: Tensor) -> bool:
    if ours.dtype is not theirs.dtype or ours.shape != theirs.shape:
        return False
    if ours.dtype is torch.bool:  # gloo adds booleans as numbers, and 2 is as true as 1
        return ours.tolist() == theirs.tolist()
    return torch.equal(*[one.contiguous().reshape(-1).view(torch.uint8) for one in (ours, theirs)])


def _is_close(ours: Tensor, theirs: Tensor, size: int) -> bool:
    """Return whether floats differ only by the order of additions; gloo rounds half-precision floats in every step."""
    if not ours.is_floating_point() or ours.shape != theirs.shape:
        return False
    step = size * torch.finfo(ours.dtype).eps
    largest = 5 * size  # largest partial sum: values are N(0, 1)
    return bool(((ours.double() - theirs.double()).abs() <= step * (theirs.double().abs() + largest)).all())


def _merged(told: Sequence[list[Row]]) -> Iterator[Row]:
    found: dict[tuple[str, str, tuple[int, ...]], Row] = {}
    for rank, rows in enumerate(told):
        for row in rows:
            first = found.setdefault((row.call, row.dtype, row.ranks), row)
            if first is not row:
                first.exact = min(first.exact, row.exact)
                first.wrong += [f"rank {rank}, {text}" for text in row.wrong]
                if first.bits != row.bits:
                    first.wrong.append(f"rank {rank} has other bits than rank {row.ranks[0]}")
    yield from found.values()


def main(words: list[str]) -> int:
    known = [str(one).removeprefix("torch.") for one in DTYPES]
    parser = argparse.ArgumentParser(prog="python -m tests.torch.beside_gloo", allow_abbrev=False)
    parser.add_argument("--ranks", "-n", type=int, default=8, help="of the largest group; of 2, 3, 4 are tried, too")
    parser.add_argument("--dtype", action="append", choices=known, help="only this type; repeat")
    parser.add_argument("--quick", action="store_true", help="one group, three shapes")
    parser.add_argument("--seed", type=int, default=1, help="decides all values")
    asked = parser.parse_args(words)
    asked.dtype = asked.dtype or known
    told = run_ranks(asked.ranks, partial(take_part, asked))
    lost = {rank: one["lost"] for rank, one in told.items()}
    rows, wrong = told[0]["rows"], told[0]["wrong"]
    wrong += [f"rank {rank}: {text}" for rank, text in lost.items() if not text.startswith(f"rank {asked.ranks - 1} ")]
    holds = not wrong and not any(row["wrong"] for row in rows)
    print(json.dumps({"torch": torch.__version__, "rows": rows, "lost": lost, "wrong": wrong, "holds": holds}))
    return int(not holds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
