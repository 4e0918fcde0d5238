"""Lose a rank in the middle of every kind of call; every other rank must name it in time.

``python -m tests.mpi.verify.lost_rank -n 5 --victim 2 --strike stop --timeout 4``
"""

import argparse
import contextlib
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from netoffload.config import Offload
from netoffload.errors import RunError
from tests.mpi.verify.failures import STRIKES
from tests.shared.local_ranks import run_local_ranks

START_S: Final = 120.0
"""Time for ranks to start, to lose one of them and to report; the silence of a stopped rank comes on top."""

Families = dict[str, dict[str, Any]]
"""The survivors' reports by family of calls: who named the rank, what was wrong, the slowest rank's time."""


def lose_a_rank(asked: argparse.Namespace) -> tuple[Families, str]:
    """Start the ranks; return what the survivors told, and what was heard of the ranks and their launcher."""
    heard: list[bytes] = []
    with tempfile.TemporaryDirectory(prefix="netoffload-") as name:
        folder = Path(name)
        words = ["-m", "tests.mpi.verify.failures", "--victim", str(asked.victim), "--strike", asked.strike]
        words += ["--timeout", str(asked.timeout), "--seed", str(asked.seed), "--offload", asked.offload]
        try:
            run_local_ranks(
                asked.ranks,
                [*words, "--out", name],
                mpi=asked.mpi,
                timeout_s=START_S + 2 * asked.timeout,
                on_stderr=lambda _, lines: heard.append(lines),  # launchers lament the dead at length
                until=lambda: len(list(folder.glob("told.*"))) == asked.ranks - 1,
            )
        except RunError as error:
            if not (folder / "struck").exists():
                raise
            heard.append(str(error).encode())
        return _judged(folder, asked), b"".join(heard).decode(errors="replace")


def _judged(folder: Path, asked: argparse.Namespace) -> Families:
    struck_s = json.loads((folder / "struck").read_text())["at_s"]
    said = "died|is gone" if asked.strike == "kill" else "was silent"
    named = re.compile(rf"PeerLostError: rank {asked.victim} ({said})\b.*")
    # A heartbeat may have come just before a rank stopped.
    limit_s = asked.timeout if asked.strike == "kill" else 1.5 * asked.timeout
    families: Families = {}
    for rank in range(asked.ranks):
        with contextlib.suppress(FileNotFoundError):
            for name, told in json.loads((folder / f"told.{rank}").read_text()).items():
                family = families.setdefault(name, {"calls": 0, "right": 0, "latest_s": 0.0, "wrong": []})
                took_s = told["at_s"] - struck_s
                family["calls"] = max(family["calls"], told["calls"])
                family["latest_s"] = max(family["latest_s"], took_s)
                if named.fullmatch(told["error"]) and took_s <= limit_s:
                    family["right"] += 1
                else:
                    family["wrong"].append(f"rank {rank} after {took_s:.1f} s: {told['error']}")
    return families


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mpi.verify.lost_rank", allow_abbrev=False)
    parser.add_argument("--ranks", "-n", type=int, default=5)
    parser.add_argument("--victim", type=int, default=2, help="the rank that is lost")
    parser.add_argument("--strike", choices=STRIKES, default="kill")
    parser.add_argument("--timeout", type=float, default=30.0, help="silence in seconds after which a rank is lost")
    parser.add_argument("--mpi", choices=("mpich", "openmpi"), default="mpich")
    parser.add_argument("--offload", choices=list(Offload), default=Offload.NIC.value)
    parser.add_argument("--seed", type=int, default=1, help="decides the moment")
    asked = parser.parse_args(words)
    families, heard = lose_a_rank(asked)
    print(json.dumps({"ranks": asked.ranks, "victim": asked.victim, "strike": asked.strike, "families": families}))
    if families and all(told["right"] == asked.ranks - 1 for told in families.values()):
        return 0
    print(heard, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
