"""The rank program: it makes the communicators, tries everything on them, and rank 0 reports."""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from netoffload import config
from netoffload.compiled.arrays import Float32Array
from netoffload.compiled.programs import end_at_once
from netoffload.config import ENV_CONTROL, ENV_OFFLOAD, Offload, parse_offload
from netoffload.errors import NetOffloadError, UsageError
from netoffload.machine.environment import system_versions
from netoffload_mpi import MPI, CompComm
from tests.mpi import verify
from tests.mpi.verify.cases import EXACT, Place, Rounding
from tests.mpi.verify.run import Trial

SIZES_DEFAULT: Final = (0, 1, 7, 1024, 1_000_003)
RANKS_DEFAULT: Final = (1, 2, 3, 4, 5, 8)
MISMATCH: Final = 1
"""Exit code if a result differs."""


def packed(sizes: Sequence[int], world: int) -> list[list[int]]:
    """Return the numbers of ranks in rounds: communicators of one round work at the same time on different ranks."""
    rounds: list[list[int]] = []
    for size in sorted(set(sizes), reverse=True):
        fitting = next((one for one in rounds if sum(one) + size <= world), None)
        if fitting is None:
            rounds.append([size])
        else:
            fitting.append(size)
    return rounds


@dataclass(frozen=True)
class Team:
    """This rank's communicators in one round: CompComm without and with rounding, and plain MPI's."""

    sizes: Sequence[int]
    exact: CompComm
    lossy: CompComm
    plain: MPI.Intracomm


def make_teams(exact: CompComm, lossy: CompComm, rounds: Sequence[Sequence[int]]) -> list[Team | Sequence[int]]:
    """Return this rank's team in every round, or the round's sizes if this rank has none; collective."""
    teams: list[Team | Sequence[int]] = []
    for sizes in rounds:
        first, team = 0, None
        for size in sizes:
            if first <= exact.rank < first + size:
                group = exact.group.Incl(list(range(first, first + size)))
                plain = MPI.Intracomm(exact).Create_group(group)
                team = Team(sizes, exact.Create_group(group), lossy.Create_group(group), plain)
            first += size
        teams.append(sizes if team is None else team)
    return teams


def rounding_of(comm: CompComm, is_coded: bool) -> Rounding:
    """Return how a communicator rounds: owners round by its codec, and so do hops if they are coded."""
    precision = comm.precision()
    if precision is None:
        return EXACT
    quantise = precision.quantiser()

    def round_trip(values: Float32Array) -> Float32Array:
        after = values.copy()
        quantise(after)
        return after

    return Rounding(round_trip if is_coded else EXACT.hop, round_trip)


def steps(
    sizes: Sequence[int], teams: Sequence[Team | Sequence[int]]
) -> Iterator[tuple[int, Team | Sequence[int], bool]]:
    for count in sizes:
        for team in teams:
            for exact in (True, False):
                yield count, team, exact


def run(world: CompComm, asked: argparse.Namespace) -> dict[str, Any]:
    """Try everything; return the record, the same on every rank."""
    ranks = asked.ranks or [size for size in {*RANKS_DEFAULT, world.size} if size <= world.size]
    sizes = list(dict.fromkeys(asked.size or SIZES_DEFAULT))
    if min(ranks) < 1 or max(ranks) > world.size or min(sizes) < 0:
        raise UsageError(f"cannot try {min(sizes)} floats or {max(ranks)} ranks: there are {world.size} ranks")
    for name in asked.call or ():
        if not hasattr(CompComm, f"{name}_comp"):
            raise UsageError(f"there is no {name}_comp: name a call as mpi4py does, for example Allreduce")
    has_nic = bool(os.environ.get(ENV_CONTROL))
    if len(set(world.allgather(has_nic))) > 1:
        raise UsageError("some ranks have no NIC, so the right results are unknown: give all ranks a NIC, or none")
    offload = world.offload()
    is_coded = offload is Offload.INLINE or (offload is Offload.NIC and has_nic)
    precision = world.precision()  # of the NICs, or of ranks that code by themselves; else None
    codec, bound_k = (asked.codec, asked.bound) if precision is None else (precision.codec, precision.bound_k)
    lossy = CompComm(world, codec, bound_k, asked.timeout, offload=offload)
    teams = make_teams(world, lossy, packed(ranks, world.size))
    started_s, tallies, mismatch = time.monotonic(), dict[str, Counter[str]](), None
    plan = list(steps(sizes, teams))
    for number, (count, team, exact) in enumerate(plan):
        if asked.progress and world.rank == 0:
            who = "+".join(map(str, team.sizes if isinstance(team, Team) else team))
            text = f"{count} floats on {who} ranks, {'exact' if exact else 'codec'}"
            print(f"{number}/{len(plan)} {text}", file=sys.stderr, flush=True)
        own = None
        if isinstance(team, Team):
            comm = team.exact if exact else team.lossy
            place = Place(comm.rank, comm.size, count, rounding_of(comm, is_coded), exact, is_coded, asked.seed)
            trial = Trial(comm, team.plain, place, frozenset(asked.call or ()))
            own = trial.run()
            add(tallies, trial.tallies)
        world.Barrier_comp()  # sleeps, and leaves the cores to ranks that still work
        if (mismatch := next((text for text in world.allgather(own) if text), None)) is not None:
            break
    total: dict[str, Counter[str]] = {}
    for of_rank in world.allgather(tallies):
        add(total, of_rank)
    return {
        "ranks": sorted(ranks),
        "sizes": sizes,
        "has_nic": has_nic,
        "offload": offload,
        "codec": codec,
        "bound_k": bound_k,
        "versions": system_versions(MPI.Get_library_version()),
        "calls": [{"call": label, **tally} for label, tally in total.items()],
        "cases": sum(tally["cases"] for tally in total.values()),
        "values": sum(tally["values"] for tally in total.values()),
        "elapsed_s": time.monotonic() - started_s,
        "mismatch": mismatch,
    }


def add(total: dict[str, Counter[str]], more: Mapping[str, Counter[str]]) -> None:
    for label, tally in more.items():
        total.setdefault(label, Counter()).update(tally)


def _parse(arguments: list[str]) -> argparse.Namespace:
    first, example, *rest = (verify.__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m mpi4py -m tests.mpi.verify",
        description=f"{first} {rest[0]}".replace("``", "").replace("*", ""),
        epilog=f"example: {example}".replace("``", ""),
        allow_abbrev=False,
    )
    parser.add_argument(
        "--size", type=int, action="append", metavar="FLOATS", help="repeat; default: 0 1 7 1024 1000003"
    )
    parser.add_argument("--ranks", type=int, action="append", metavar="N", help="repeat; default: 1 2 3 4 5 8 and all")
    parser.add_argument("--call", action="append", metavar="NAME", help="try only this call, by mpi4py's name; repeat")
    parser.add_argument("--codec", choices=config.CODECS, default="inceptionn", help="codec, if no NIC names its own")
    parser.add_argument(
        "--bound", type=int, default=config.BOUND_K_DEFAULT, metavar="K", help="error bound 2^-K, 1..16"
    )
    parser.add_argument(
        "--offload",
        type=parse_offload,
        choices=list(Offload),
        help=f"who compresses; default: ${ENV_OFFLOAD}, else auto",
    )
    parser.add_argument("--seed", type=int, default=1, help="decides all values")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="S", help="silence after which a rank is lost")
    parser.add_argument("--progress", action="store_true", help="say on standard error what comes next")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    end_at_once()
    asked = _parse(arguments)
    # If NICs compress, the codec is theirs.
    codec, bound_k = (asked.codec, asked.bound) if asked.offload is Offload.INLINE else (None, None)
    with CompComm(MPI.COMM_WORLD, codec, bound_k, asked.timeout, offload=asked.offload) as world:
        try:
            record = run(world, asked)
        except UsageError as error:  # every rank has the same arguments, so all of them come here
            if world.rank == 0:
                print(f"netoffload: {error}", file=sys.stderr)
            sys.exit(error.exit_code)
        except NetOffloadError as error:
            print(f"netoffload: rank {world.rank}: {error}", file=sys.stderr, flush=True)
            MPI.COMM_WORLD.Abort(error.exit_code)
            sys.exit(error.exit_code)  # where the launcher is gone, MPI returns
        if world.rank == 0:
            print(json.dumps(record, indent=2))
            if record["mismatch"]:
                print(f"netoffload: {record['mismatch']}", file=sys.stderr, flush=True)
    if record["mismatch"]:
        MPI.Finalize()  # all ranks come here; else mpi4py would abort the job with a message
        sys.exit(MISMATCH)


if __name__ == "__main__":
    main(sys.argv[1:])
