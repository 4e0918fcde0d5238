"""Every call of ``torch.distributed`` on CPU tensors, for :mod:`~tests.torch.beside_gloo` to try."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

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
