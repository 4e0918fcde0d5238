"""The rank program: it makes the communicators, tries everything on them, and rank 0 reports."""

import argparse
import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
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
MISMATCH: Final = 1  # exit code if a result differs


@dataclass(frozen=True)
class Team:
    """Communicators of the same ranks: CompComm without and with rounding, and plain MPI's."""

    exact: CompComm
    lossy: CompComm
    plain: MPI.Intracomm


def make_team(exact: CompComm, lossy: CompComm, size: int) -> Team | None:
    """Return the communicators of the first ``size`` ranks, on other ranks None."""
    if exact.rank >= size:
        return None
    group = exact.group.Incl(list(range(size)))
    return Team(exact.Create_group(group), lossy.Create_group(group), MPI.Intracomm(exact).Create_group(group))


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
    teams = [make_team(world, lossy, size) for size in sorted(set(ranks), reverse=True)]
    started_s, tallies, mismatch = time.monotonic(), dict[str, Counter[str]](), None
    for count, team, exact in itertools.product(sizes, teams, (True, False)):  # short vectors come first
        own = None
        if team is not None:
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
    parser = argparse.ArgumentParser(
        prog="python -m mpi4py -m tests.mpi.verify",
        description=verify.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
