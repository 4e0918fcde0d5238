"""Calls that differ: ``backend_differences.py FIRST EVERY``; each pair in a group of three ranks.

Rank 1 makes one call of a pair, the others make the other one. Tried are all pairs of the same call, and of the others
``FIRST``, ``FIRST + EVERY``, ... Each rank prints what it heard. ``SAME`` lists the calls that may meet.
"""

import itertools
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist

from netoffload.torch import BackendOptions
from tests.torch.programs.forked_group import error_of, join, print_ranks

LIMIT_S = 20
SIZE = 3
Group = dist.ProcessGroup


def made(dtype: torch.dtype = torch.float32, count: int = 96) -> torch.Tensor:
    return torch.ones(count, dtype=dtype)


def several(dtype: torch.dtype = torch.float32, count: int = 96) -> list[torch.Tensor]:
    return [made(dtype, count) for _ in range(SIZE)]


def on(root: int, values: list[torch.Tensor]) -> list[torch.Tensor] | None:
    return values if dist.get_rank() == root else None


Op = dist.ReduceOp
CALLS: dict[str, Callable[[Group], Any]] = {
    "barrier": lambda g: dist.barrier(g),
    "all_reduce": lambda g: dist.all_reduce(made(), Op.SUM, g),
    "all_reduce, long": lambda g: dist.all_reduce(made(count=100_000), Op.SUM, g),
    "all_reduce, longer": lambda g: dist.all_reduce(made(count=100_001), Op.SUM, g),
    "all_reduce AVG": lambda g: dist.all_reduce(made(), Op.AVG, g),
    "all_reduce MAX": lambda g: dist.all_reduce(made(), Op.MAX, g),
    "all_reduce float64": lambda g: dist.all_reduce(made(torch.float64), Op.SUM, g),
    "all_reduce bfloat16": lambda g: dist.all_reduce(made(torch.bfloat16), Op.SUM, g),
    "all_reduce int32": lambda g: dist.all_reduce(made(torch.int32), Op.SUM, g),
    "all_reduce int8": lambda g: dist.all_reduce(made(torch.int8, 4 * 96 - 1), Op.SUM, g),
    "all_reduce BAND": lambda g: dist.all_reduce(made(torch.int32), Op.BAND, g),
    "all_reduce BOR": lambda g: dist.all_reduce(made(torch.int32), Op.BOR, g),
    "all_reduce of two": lambda g: dist.all_reduce_coalesced([made(), made(count=95)], Op.SUM, g),
    "all_reduce, sparse": lambda g: dist.all_reduce(made().to_sparse(), Op.SUM, g),
    "reduce": lambda g: dist.reduce(made(), 0, Op.SUM, g),
    "reduce to 1": lambda g: dist.reduce(made(), 1, Op.SUM, g),
    "reduce int32": lambda g: dist.reduce(made(torch.int32), 0, Op.SUM, g),
    "reduce_scatter": lambda g: dist.reduce_scatter(made(), several(), Op.SUM, g),
    "reduce_scatter AVG": lambda g: dist.reduce_scatter(made(), several(), Op.AVG, g),
    "reduce_scatter int32": lambda g: dist.reduce_scatter(made(torch.int32), several(torch.int32), Op.SUM, g),
    "reduce_scatter, short": lambda g: dist.reduce_scatter(made(count=9), several(count=9), Op.SUM, g),
    "broadcast": lambda g: dist.broadcast(made(), 0, g),
    "broadcast from 1": lambda g: dist.broadcast(made(), 1, g),
    "broadcast int32": lambda g: dist.broadcast(made(torch.int32), 0, g),
    "broadcast int8": lambda g: dist.broadcast(made(torch.int8, 4 * 96 - 1), 0, g),
    "all_gather": lambda g: dist.all_gather(several(), made(), g),
    "all_gather into one": lambda g: dist.all_gather_into_tensor(made(count=SIZE * 96), made(), g),
    "all_gather int32": lambda g: dist.all_gather(several(torch.int32), made(torch.int32), g),
    "all_gather int8": lambda g: dist.all_gather(several(torch.int8, 383), made(torch.int8, 383), g),
    "gather": lambda g: dist.gather(made(), on(0, several()), 0, g),
    "gather to 1": lambda g: dist.gather(made(), on(1, several()), 1, g),
    "gather int32": lambda g: dist.gather(made(torch.int32), on(0, several(torch.int32)), 0, g),
    "gather int8": lambda g: dist.gather(made(torch.int8, 383), on(0, several(torch.int8, 383)), 0, g),
    "gather int8, another": lambda g: dist.gather(made(torch.int8, 382), on(0, several(torch.int8, 382)), 0, g),
    "scatter": lambda g: dist.scatter(made(), on(0, several()), 0, g),
    "scatter from 1": lambda g: dist.scatter(made(), on(1, several()), 1, g),
    "scatter int32": lambda g: dist.scatter(made(torch.int32), on(0, several(torch.int32)), 0, g),
    "scatter int8": lambda g: dist.scatter(made(torch.int8, 383), on(0, several(torch.int8, 383)), 0, g),
    "scatter int8, another": lambda g: dist.scatter(made(torch.int8, 382), on(0, several(torch.int8, 382)), 0, g),
    "all_to_all": lambda g: dist.all_to_all(several(), several(), g),
    "all_to_all, single": lambda g: dist.all_to_all_single(made(count=288), made(count=288), group=g),
    "all_to_all int32": lambda g: dist.all_to_all(several(torch.int32), several(torch.int32), g),
    "all_to_all int8": lambda g: dist.all_to_all(several(torch.int8, 7), several(torch.int8, 7), g),
    "all_to_all int8, another": lambda g: dist.all_to_all(several(torch.int8, 6), several(torch.int8, 6), g),
}

SAME = {("all_gather", "all_gather into one"), ("all_to_all", "all_to_all, single")}
"""Two ways to say the same: what arrives is right."""


BATCH = 60
"""Pairs at a time: a rank that finds a difference waits a second, in case its peer has a better reason."""


def make_group(pair: tuple[str, str]) -> Group:
    group: Group | None = dist.new_group(
        pg_options=BackendOptions("bounded", 10, offload="inline") if "long" in pair[0] else None
    )
    assert group is not None
    return group


def try_pairs(pairs: Sequence[tuple[str, str]]) -> list[str]:
    groups = [make_group(pair) for pair in pairs]
    mine = [CALLS[pair[dist.get_rank() == 1]] for pair in pairs]
    with ThreadPoolExecutor(len(pairs)) as threads:
        texts = list(threads.map(lambda call, group: error_of(lambda: call(group)), mine, groups))
    dist.barrier()
    for group in groups:
        dist.destroy_process_group(group)
    return texts


MESSAGES = (
    (made(), made(torch.int32)),
    (made(), made(torch.int8, 4 * 96)),
    (made(torch.int8, 383), made()),
    (made(torch.int8, 5), made(torch.int8, 6)),
    (made(count=9), made(count=10)),
    (made(count=10), made(count=9)),
    (made(torch.float16), made(torch.bfloat16)),
)
"""What rank 0 sends, and what rank 1 receives."""


def try_message(sent: torch.Tensor, into: torch.Tensor) -> list[str]:
    """Return the kind of a message, and the error that this rank gets, the sender at once or in its next call."""
    group = dist.new_group()

    def call() -> None:
        if dist.get_rank() == 1:
            dist.recv(into, 0, group, 5)
            return
        if dist.get_rank() == 0:
            dist.send(sent, 1, group, 5)
        dist.barrier(group)

    text = error_of(call)
    dist.barrier()
    dist.destroy_process_group(group)
    return ["message", f"{sent.dtype}[{len(sent)}] as {into.dtype}[{len(into)}]", text]


def take_part(rank: int, size: int, port: int) -> Any:
    warnings.simplefilter("ignore")
    join(rank, size, port, LIMIT_S)
    first, every = map(int, sys.argv[1:])
    every_pair = [pair for pair in itertools.combinations(CALLS, 2) if pair not in SAME]
    near = [pair for pair in every_pair if pair[0].split()[0].rstrip(",") == pair[1].split()[0].rstrip(",")]
    pairs = near + [pair for pair in every_pair if pair not in near][first::every]
    batches = [pairs[start : start + BATCH] for start in range(0, len(pairs), BATCH)]
    texts = [text for batch in batches for text in try_pairs(batch)]
    messages = [try_message(*one) for one in MESSAGES]
    dist.destroy_process_group()
    return [*([*pair, text] for pair, text in zip(pairs, texts, strict=True)), *messages]


if __name__ == "__main__":
    print_ranks(SIZE, take_part)
