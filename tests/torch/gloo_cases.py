"""Every call of ``torch.distributed`` on CPU tensors, for :mod:`~tests.torch.beside_gloo` to try."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
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
        """This rank in the group."""
        return self.group.rank()

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def root(self) -> int:
        """The root of rooted calls, counted in the world."""
        return self.ranks[-1]

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

    def row(self) -> Tensor:
        """Return new values in one dimension."""
        return self.values(math.prod(self.shape))

    def room(self, *shape: int) -> Tensor:
        """Return a tensor for results."""
        return torch.zeros(shape or self.shape, dtype=self.dtype)


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
    """Return every case."""
    for name in (*ARITHMETIC, *BITWISE, "AVG"):
        dtypes = {"AVG": FLOATS}.get(name, INTEGERS if name in BITWISE else DTYPES)
        yield Case(f"all_reduce {name}", _with_op(_all_reduce, name), dtypes, is_same=True)
        yield Case(f"reduce_scatter {name}", _with_op(_reduce_scatter, name), dtypes)
        if name != "AVG":
            yield Case(f"reduce {name}", _with_op(_reduce, name), dtypes)
    for name, tried in _REDUCTIONS.items():
        yield Case(f"{name} SUM", tried, is_same=name.startswith("all_reduce"))
    for name, tried in _MOVEMENTS.items():
        yield Case(name, tried, is_same=name.startswith(("broadcast", "all_gather")))


def _with_op(tried: Callable[[Place, Any], list[Tensor]], name: str) -> Try:
    return lambda place: tried(place, getattr(dist.ReduceOp, name))


def _all_reduce(place: Place, op: Any) -> list[Tensor]:
    values = place.values()
    dist.all_reduce(values, op, place.group)
    return [values]


def _reduce(place: Place, op: Any) -> list[Tensor]:
    values = place.values()
    dist.reduce(values, place.root, op, place.group)
    return [values] if place.ranks[place.rank] == place.root else []


def _reduce_scatter(place: Place, op: Any) -> list[Tensor]:
    into = place.room()
    dist.reduce_scatter(into, [place.values() for _ in place.ranks], op, place.group)
    return [into]


def _all_reduce_async(place: Place) -> list[Tensor]:
    values = [place.values() for _ in range(3)]
    works = [dist.all_reduce(one, group=place.group, async_op=True) for one in values]
    futures = [work.get_future() for work in works if work is not None]
    return [future.wait()[0] for future in futures]


def _all_reduce_coalesced(place: Place) -> list[Tensor]:
    values = [place.values(), place.values(5)]
    dist.all_reduce_coalesced(values, group=place.group)
    return values


def _reduce_scatter_tensor(place: Place) -> list[Tensor]:
    source = place.values(place.size * math.prod(place.shape))
    into = place.room(math.prod(place.shape))
    dist.reduce_scatter_tensor(into, source, group=place.group)
    return [into]


def _broadcast(place: Place) -> list[Tensor]:
    values = place.values()
    dist.broadcast(values, place.root, place.group)
    return [values]


def _all_gather(place: Place) -> list[Tensor]:
    into = [place.room() for _ in place.ranks]
    dist.all_gather(into, place.values(), place.group)
    return into


def _all_gather_into_tensor(place: Place) -> list[Tensor]:
    values = place.row()
    into = place.room(place.size * values.numel())
    dist.all_gather_into_tensor(into, values, place.group)
    return [into]


def _gather(place: Place) -> list[Tensor]:
    into = [place.room() for _ in place.ranks] if place.ranks[place.rank] == place.root else None
    dist.gather(place.values(), into, place.root, place.group)
    return into or []


def _scatter(place: Place) -> list[Tensor]:
    source = [place.values() for _ in place.ranks]
    into = place.room()
    dist.scatter(into, source if place.ranks[place.rank] == place.root else None, place.root, place.group)
    return [into]


def _all_to_all(place: Place) -> list[Tensor]:
    into = [place.room() for _ in place.ranks]
    dist.all_to_all(into, [place.values() for _ in place.ranks], place.group)
    return into


def _all_to_all_single(place: Place) -> list[Tensor]:
    source = place.values(place.size * math.prod(place.shape))
    into = torch.zeros_like(source)
    dist.all_to_all_single(into, source, group=place.group)
    return [into]


def _all_to_all_single_split(place: Place) -> list[Tensor]:
    """Rank r sends s + 1 rows of 3 to rank s."""
    sizes = [rank + 1 for rank in range(place.size)]
    source, own = place.values(sum(sizes) * 3).view(-1, 3), place.rank + 1
    into = place.room(own * place.size, 3)
    dist.all_to_all_single(into, source, [own] * place.size, sizes, place.group)
    return [into]


def _send_recv(place: Place) -> list[Tensor]:
    """Two messages to the right, received in the other order by their tags."""
    right, left = place.ranks[(place.rank + 1) % place.size], place.ranks[(place.rank - 1) % place.size]
    source, into = [place.values(), place.values()], [place.room(), place.room()]
    going = [dist.isend(one, right, place.group, tag) for tag, one in enumerate(source, 3)]
    coming = [dist.irecv(into[tag], left, place.group, tag + 3) for tag in (1, 0)]
    for work in (*going, *coming):
        assert work is not None
        work.wait()
    return into


def _recv_any(place: Place) -> list[Tensor]:
    """The root receives from any rank, and learns from which; gloo cannot receive an empty tensor this way."""
    if 0 in place.shape:
        return []
    heard = {}
    if place.ranks[place.rank] != place.root:
        dist.send(place.values(), place.root, place.group)
    else:
        for _ in range(place.size - 1):
            into = place.room()
            heard[dist.recv(into, None, place.group)] = into
    dist.barrier(place.group)  # or a rank's next message could be taken for another's
    return [heard[rank] for rank in sorted(heard)]


def _batch(place: Place) -> list[Tensor]:
    """A ring by ``batch_isend_irecv``."""
    right, left = place.ranks[(place.rank + 1) % place.size], place.ranks[(place.rank - 1) % place.size]
    into = place.room()
    going = dist.P2POp(dist.isend, place.values(), right, place.group)
    for work in dist.batch_isend_irecv([going, dist.P2POp(dist.irecv, into, left, place.group)]):
        work.wait()
    return [into]


_REDUCTIONS: Final[Mapping[str, Try]] = {
    "all_reduce async": _all_reduce_async,
    "all_reduce_coalesced": _all_reduce_coalesced,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
}
_MOVEMENTS: Final[Mapping[str, Try]] = {
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
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
