"""The backend against gloo: every call, on every type, in groups of several sizes, in the same processes.

Values that are only moved, or reduced without rounding, must have gloo's bits. Sums of floats must agree within their
rounding. Results that are the same on all ranks must have the same bits on each. In the end a rank kills itself, and
all others must name it.

``python -m tests.torch.beside_gloo -n 8``
"""

import argparse
import json
import math
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from tests.torch.programs.forked_group import error_of, everywhere, join, run_ranks, strike

FLOATS: Final = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS: Final = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool)
DTYPES: Final = (*FLOATS, *INTEGERS)
ARITHMETIC: Final = ("SUM", "PRODUCT", "MIN", "MAX")
BITWISE: Final = ("BAND", "BOR", "BXOR")


@dataclass
class Place:
    """Where a case is tried, and with which values: a group, whose ranks are counted in the world, type.

    Shape and seed. No tensor is transposed where it ``is_plain``.
    """

    group: ProcessGroup
    ranks: tuple[int, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]
    seed: int
    is_plain: bool = False
    _made: int = field(default=0, init=False)

    @property
    def rank(self) -> int:
        return self.group.rank()

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def root(self) -> int:
        """The root of rooted calls, counted in the world."""
        return self.ranks[-1]

    @property
    def is_root(self) -> bool:
        return self.ranks[self.rank] == self.root

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def values(self, *shape: int) -> Tensor:
        """Return new values of the case's shape, or of the given one; a matrix is transposed in memory."""
        shape = shape or self.shape
        self._made += 1
        seed = torch.Generator().manual_seed(self.seed * 1_000_003 + 1009 * self.ranks[self.rank] + self._made)
        if self.dtype.is_floating_point:
            made = torch.randn(shape, generator=seed).to(self.dtype)
        else:
            low = 0 if self.dtype in (torch.bool, torch.uint8) else -9
            made = torch.randint(low, 2 if self.dtype is torch.bool else 10, shape, generator=seed).to(self.dtype)
        return made.t().contiguous().t() if len(shape) == 2 and not self.is_plain else made

    def one_each(self) -> list[Tensor]:
        """Return new values for every rank."""
        return [self.values() for _ in self.ranks]

    def room(self, *shape: int) -> Tensor:
        """Return a tensor for results."""
        return torch.zeros(shape or self.shape, dtype=self.dtype)

    def rooms(self) -> list[Tensor]:
        """Return a tensor for results of every rank."""
        return [self.room() for _ in self.ranks]


Try = Callable[[Place], list[Tensor]]


@dataclass(frozen=True)
class Case:
    """A call to try; ``tried`` makes it and returns its results, which ``is_same`` says are the same on all ranks."""

    name: str
    tried: Try
    dtypes: tuple[torch.dtype, ...] = DTYPES
    is_same: bool = False

    @property
    def is_rounded(self) -> bool:
        """Whether the call rounds floats, so that results may differ in rounding."""
        return self.name.rpartition(" ")[2] in ("SUM", "AVG", "PRODUCT")


def cases() -> Iterator[Case]:
    for name in (*ARITHMETIC, *BITWISE, "AVG"):
        dtypes = {"AVG": FLOATS}.get(name, INTEGERS if name in BITWISE else DTYPES)
        yield Case(f"all_reduce {name}", partial(_all_reduce, op=getattr(dist.ReduceOp, name)), dtypes, is_same=True)
        yield Case(f"reduce_scatter {name}", partial(_reduce_scatter, op=getattr(dist.ReduceOp, name)), dtypes)
        if name != "AVG":
            yield Case(f"reduce {name}", partial(_reduce, op=getattr(dist.ReduceOp, name)), dtypes)
    for name, tried in _REDUCTIONS.items():
        yield Case(f"{name} SUM", tried, is_same=name.startswith("all_reduce"))
    for name, tried in _MOVEMENTS.items():
        yield Case(name, tried, is_same=name.startswith(("broadcast", "all_gather")))


def _left(results: Tensor | list[Tensor], _called: Any) -> list[Tensor]:
    """Return what a call has left in tensors that were made for it."""
    return results if isinstance(results, list) else [results]


def _all_reduce(at: Place, op: Any) -> list[Tensor]:
    return _left(values := at.values(), dist.all_reduce(values, op, at.group))


def _reduce(at: Place, op: Any) -> list[Tensor]:
    values = at.values()
    return _left([values] if at.is_root else [], dist.reduce(values, at.root, op, at.group))


def _reduce_scatter(at: Place, op: Any) -> list[Tensor]:
    return _left(into := at.room(), dist.reduce_scatter(into, at.one_each(), op, at.group))


def _all_reduce_async(at: Place) -> list[Tensor]:
    works = [dist.all_reduce(at.values(), group=at.group, async_op=True) for _ in range(3)]
    return [work.get_future().wait()[0] for work in works if work is not None]


def _all_to_all_single_split(at: Place) -> list[Tensor]:
    """Rank r sends s + 1 rows of 3 to rank s."""
    sizes = [rank + 1 for rank in range(at.size)]
    source, own = at.values(sum(sizes) * 3).view(-1, 3), at.rank + 1
    into = at.room(own * at.size, 3)
    dist.all_to_all_single(into, source, [own] * at.size, sizes, at.group)
    return [into]


def _send_recv(at: Place) -> list[Tensor]:
    """Two messages to the right, received in the other order by their tags."""
    right, left = at.ranks[(at.rank + 1) % at.size], at.ranks[(at.rank - 1) % at.size]
    source, into = [at.values(), at.values()], [at.room(), at.room()]
    going = [dist.isend(one, right, at.group, tag) for tag, one in enumerate(source, 3)]
    coming = [dist.irecv(into[tag], left, at.group, tag + 3) for tag in (1, 0)]
    for work in (*going, *coming):
        assert work is not None
        work.wait()
    return into


def _recv_any(at: Place) -> list[Tensor]:
    """The root receives from any rank, and learns from which; gloo cannot receive an empty tensor this way."""
    if 0 in at.shape:
        return []
    heard = {}
    if not at.is_root:
        dist.send(at.values(), at.root, at.group)
    else:
        for _ in range(at.size - 1):
            into = at.room()
            heard[dist.recv(into, None, at.group)] = into
    dist.barrier(at.group)  # or a rank's next message could be taken for another's
    return [heard[rank] for rank in sorted(heard)]


def _batch(at: Place) -> list[Tensor]:
    """A ring by ``batch_isend_irecv``."""
    right, left = at.ranks[(at.rank + 1) % at.size], at.ranks[(at.rank - 1) % at.size]
    into = at.room()
    going = dist.P2POp(dist.isend, at.values(), right, at.group)
    for work in dist.batch_isend_irecv([going, dist.P2POp(dist.irecv, into, left, at.group)]):
        work.wait()
    return [into]


_REDUCTIONS: Final[Mapping[str, Try]] = {
    "all_reduce async": _all_reduce_async,
    "all_reduce_coalesced": lambda at: _left(
        values := [at.values(), at.values(5)], dist.all_reduce_coalesced(values, group=at.group)
    ),
    "reduce_scatter_tensor": lambda at: _left(
        into := at.room(at.numel), dist.reduce_scatter_tensor(into, at.values(at.size * at.numel), group=at.group)
    ),
    "reduce_scatter_tensor of every other value": lambda at: _left(
        into := at.room(at.numel),
        dist.reduce_scatter_tensor(into, at.values(2 * at.size * at.numel)[::2], group=at.group),
    ),
}
_MOVEMENTS: Final[Mapping[str, Try]] = {
    "broadcast": lambda at: _left(values := at.values(), dist.broadcast(values, at.root, at.group)),
    "all_gather": lambda at: _left(into := at.rooms(), dist.all_gather(into, at.values(), at.group)),
    "all_gather_into_tensor": lambda at: _left(
        into := at.room(at.size * at.numel), dist.all_gather_into_tensor(into, at.values(at.numel), at.group)
    ),
    "gather": lambda at: _left(
        into := at.rooms() if at.is_root else [], dist.gather(at.values(), into or None, at.root, at.group)
    ),
    "scatter": lambda at: _left(
        into := at.room(), dist.scatter(into, at.one_each() if at.is_root else None, at.root, at.group)
    ),
    "all_to_all": lambda at: _left(into := at.rooms(), dist.all_to_all(into, at.one_each(), at.group)),
    "all_to_all_single": lambda at: _left(
        into := at.room(at.size * at.numel),
        dist.all_to_all_single(into, at.values(at.size * at.numel), group=at.group),
    ),
    "all_to_all_single, split": _all_to_all_single_split,
    "send, recv": _send_recv,
    "recv from any": _recv_any,
    "batch_isend_irecv": _batch,
}


def objects(group: ProcessGroup, ranks: tuple[int, ...]) -> list[Any]:
    """Return the results of the calls for objects; they must be the same with both backends."""
    rank, size = group.rank(), len(ranks)
    own, root = {"rank": rank, "text": "x" * (100 * rank)}, ranks[-1]
    everybody: list[Any] = [None] * size
    dist.all_gather_object(everybody, own, group)
    told: list[Any] = [own, rank]
    dist.broadcast_object_list(told, root, group)
    gathered: list[Any] | None = [None] * size if ranks[rank] == root else None
    dist.gather_object(own, gathered, root, group)
    part: list[Any] = [None]
    dist.scatter_object_list(part, [{"for": one} for one in ranks] if ranks[rank] == root else None, root, group)
    message: list[Any] = [own]
    if rank == 0:
        dist.send_object_list(message, root, group)
    elif rank == size - 1:
        dist.recv_object_list(message, ranks[0], group)
    dist.barrier(group)
    return [everybody, told, gathered, part, message]


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
