"""Runs the engines' examples on ranks of torchrun, which are forks of one process: ``engines_apart WORDS EXAMPLE...``.

The network namespace is the program's own, with a loopback interface. Prints, as JSON, for each example its output and
the octets that crossed the interface, launcher and store included.
"""

import importlib.util
import json
import sys
from pathlib import Path

from tests.torch.launcher import LOADED, loaded

ENGINES = ("accelerate", "lightning.pytorch", "transformers.trainer", "sklearn.datasets")


def load_engines() -> None:
    """Load here what every rank would load by itself, of what is installed."""
    for name in ENGINES:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)


def loopback_octets() -> int:
    """Read how many octets the loopback interface took in."""
    return int(Path("/proc/net/dev").read_text().rpartition("lo:")[2].split()[0])


def main(words: str, *examples: str) -> None:
    found = {}
    with loaded((*LOADED, "tests.torch.programs.engines_apart:load_engines")) as launcher:
        for example in examples:
            before = loopback_octets()
            done = launcher.torchrun(["--standalone"], "programs.all_examples", f"{example} {words}")
            assert done.returncode == 0, f"{example}: {done.stderr[-3000:]}"
            found[example] = [done.stdout, loopback_octets() - before]
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
