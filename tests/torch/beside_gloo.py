"""The backend against gloo: every call, on every type, in groups of several sizes, in the same processes.

Ranks are forked from one process, which has loaded everything once. Values that are only moved, or reduced without
rounding, must have gloo's bits. Sums of floats must agree within their rounding. Results that are the same on all ranks
must have the same bits on each. In the end a rank kills itself, and all others must name it.

``python -m tests.torch.beside_gloo -n 8``
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from netoffload.errors import RunError
from netoffload.transport.rounds.driver import prepare
from tests.torch.gloo_cases import DTYPES, Case, Place, cases, objects

SHAPES: Final = ((), (0,), (13,), (6, 5), (20011,))
"""A number, nothing, octets that do not fill whole words, a transposed matrix, and a vector too long to be short."""

QUICK_SHAPES: Final = ((0,), (6, 5), (9001,))
SIZES: Final = (2, 3, 4, 8)
PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True)
class Trial:
    """What to try: groups of the first ranks, with the odd ranks as one more; the time limit is the process groups'."""

    ranks: int = 8
    sizes: tuple[int, ...] = SIZES
    shapes: tuple[tuple[int, ...], ...] = SHAPES
    dtypes: tuple[torch.dtype, ...] = DTYPES
    seed: int = 1
    timeout_s: float = 60.0

    def groups(self) -> list[tuple[int, ...]]:
        """Return the groups, as ranks counted in the world."""
        whole = sorted({size for size in self.sizes if size < self.ranks} | {self.ranks})
        odd = tuple(range(1, self.ranks, 2))
        return [tuple(range(size)) for size in whole] + ([odd] if len(odd) > 1 else [])


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


def run(trial: Trial) -> dict[str, Any]:
    """Start the ranks, and return the record.

    It has the rows, merged over ranks; further errors; by rank, the error that it raised when the last rank killed
    itself; and whether all is right.
    """
    prepare()
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="netoffload-") as name:
        pids = [_fork(rank, trial, Path(name)) for rank in range(trial.ranks)]
        try:
            while pids:
                os.waitpid(pids[0], 0)
                del pids[0]
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        told = [_told(Path(name), rank) for rank in range(trial.ranks)]
    rows = list(_merged([one["rows"] for one in told]))
    lost = {rank: one["lost"] for rank, one in enumerate(told[:-1])}
    victim = trial.ranks - 1
    wrong = [text for one in told for text in one["wrong"]]
    wrong += [f"rank {rank}: {text}" for rank, text in lost.items() if not text.startswith(f"rank {victim} ")]
    return {
        "ranks": trial.ranks,
        "torch": torch.__version__,
        "rows": [asdict(row) for row in rows],
        "lost": lost,
        "wrong": wrong,
        "elapsed_s": time.monotonic() - started_s,
        "holds": not wrong and not any(row.wrong for row in rows),
    }


def take_part(rank: int, trial: Trial, folder: Path) -> None:
    """Be one rank, and write what it found to a file."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), trial.ranks)  # type: ignore[attr-defined]
    limit = timedelta(seconds=trial.timeout_s)
    dist.init_process_group("netoffload", store=store, rank=rank, world_size=trial.ranks, timeout=limit)
    rows: list[Row] = []
    wrong: list[str] = []
    for ranks in trial.groups():
        pair = [dist.new_group(list(ranks), limit, name) for name in ("netoffload", "gloo")]
        if rank in ranks:
            rows += [
                try_case(case, dtype, ranks, pair, trial)
                for case in cases()
                for dtype in trial.dtypes
                if dtype in case.dtypes
            ]
            found = [objects(group, ranks) for group in pair]
            wrong += [] if found[0] == found[1] else [f"objects in {ranks}: {found[0]} is not {found[1]}"]
    dist.barrier()
    _leave(folder, rank, {"rows": [asdict(row) for row in rows], "wrong": wrong, "lost": ""})
    text = _lose(trial.ranks - 1)
    _leave(folder, rank, {"rows": [asdict(row) for row in rows], "wrong": wrong, "lost": text})


def try_case(case: Case, dtype: torch.dtype, ranks: tuple[int, ...], pair: Sequence[ProcessGroup], trial: Trial) -> Row:
    """Make a call on both groups with all shapes, and compare the results."""
    row = Row(case.name, str(dtype).removeprefix("torch."), ranks)
    for shape in trial.shapes:
        ours = case.tried(Place(pair[0], ranks, dtype, shape, trial.seed))
        # Some of gloo's calls take no transposed tensors, and its reduce_scatter mixes their elements up.
        theirs = case.tried(Place(pair[1], ranks, dtype, shape, trial.seed, is_plain=True))
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


def _lose(victim: int) -> str:
    """Let a rank kill itself; return the error that this rank raises."""
    if dist.get_rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.all_reduce(torch.ones(3))
    except dist.DistBackendError as error:
        return str(error)


def _fork(rank: int, trial: Trial, folder: Path) -> int:
    if (pid := os.fork()) == 0:
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # no rank outlives the command
            take_part(rank, trial, folder)
        except BaseException as error:
            _leave(folder, rank, {"rows": [], "wrong": [f"rank {rank}: {type(error).__name__}: {error}"], "lost": ""})
        finally:
            os._exit(0)
    return pid


def _leave(folder: Path, rank: int, what: dict[str, Any]) -> None:
    part = folder / f"part.{rank}"
    part.write_text(json.dumps(what), encoding="utf-8")
    part.rename(folder / f"told.{rank}")


def _told(folder: Path, rank: int) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / f"told.{rank}").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"rank {rank} ended without a result: run with fewer ranks, or look at its output") from None
    return found


def _merged(told: Sequence[list[dict[str, Any]]]) -> Iterator[Row]:
    """Return the rows of all ranks, each once."""
    found: dict[tuple[str, str, tuple[int, ...]], Row] = {}
    for rank, rows in enumerate(told):
        for words in rows:
            row = Row(**words | {"ranks": tuple(words["ranks"])})
            first = found.setdefault((row.call, row.dtype, row.ranks), row)
            if first is not row:
                first.exact = min(first.exact, row.exact)
                first.wrong += [f"rank {rank}, {text}" for text in row.wrong]
                if first.bits != row.bits:
                    first.wrong.append(f"rank {rank} has other bits than rank {row.ranks[0]}")
    yield from found.values()


def main(words: list[str]) -> int:
    """Carry a command line out; return 1 if a result is wrong."""
    known = {str(one).removeprefix("torch."): one for one in DTYPES}
    parser = argparse.ArgumentParser(prog="python -m tests.torch.beside_gloo", allow_abbrev=False)
    parser.add_argument("--ranks", "-n", type=int, default=8, help="of the largest group; of 2, 3, 4 are tried, too")
    parser.add_argument("--dtype", action="append", choices=known, help="only this type; repeat")
    parser.add_argument("--quick", action="store_true", help="one group, three shapes")
    parser.add_argument("--seed", type=int, default=1, help="decides all values")
    parser.add_argument("--timeout", type=float, default=60.0, help="time limit of the process groups, in seconds")
    asked = parser.parse_args(words)
    sizes, shapes = ((), QUICK_SHAPES) if asked.quick else (SIZES, SHAPES)
    dtypes = tuple(known[name] for name in asked.dtype or known)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    record = run(Trial(asked.ranks, sizes, shapes, dtypes, asked.seed, asked.timeout))
    print(json.dumps(record))
    return int(not record["holds"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
