"""Torch's own tests of ``torch.distributed``, over this backend: a command, not a test module.

    python tests/torch/torch_suite.py [--ranks 3] [--backend gloo] [-k WORDS] [--quick] [--json]

The tests are those of the installed wheel (``torch.testing._internal.distributed``) and are not kept here. Ranks are
forks of one process. The tests ask for the backend's name and skip what only other backends can do. To them this
backend is gloo as well, and MPI where only MPI moves CPU tensors all to all. ``--quick`` leaves out what
``NOT_QUICK`` names. The command prints what became of each test. It fails if a test fails for which
``REASONS`` has no reason, or passes though it has one.
"""

import argparse
import contextlib
import importlib
import io
import json
import logging
import os
import re
import sys
import tempfile
import time
import types
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

SUITE = "torch.testing._internal.distributed.distributed_test"

_MONITORED = "dist.monitored_barrier refuses every backend that is not named gloo; the group's own method works"

REASONS: dict[str, str] = {
    "test_monitored_barrier_failure_order": _MONITORED,
    "test_monitored_barrier_gloo": _MONITORED,
    "test_monitored_barrier_gloo_rank_0_timeout": _MONITORED,
    "test_monitored_barrier_gloo_subgroup": _MONITORED,
    "test_monitored_barrier_wait_all_ranks": _MONITORED,
}
"""Tests that fail, and why; ``docs/guide/torch.md`` has the same table."""

NOT_QUICK = re.compile(
    "[dD]dp|DDP|Distributed|cuda|nccl|[sS]ync|averager|localSGD|graph|logger|subgroups_|output_"
    "|(max|min|product)$|full_group|_profiler|_parameters|_err$|barrier_(timeout|gloo_|allreduce|wait)"
)
"""Names of tests that train models, which is slow, or want GPUs, which they find out when all ranks have started.

Also those of other operations, and of a group of all ranks: ``beside_gloo`` tries them on every type. Also the same
tests beside torch's profiler, and those that wait for a time limit.
"""

LIMIT_S = 60  # time limit of a test


class Backend(str):
    """The backend's name, which the tests compare with names of others."""

    __slots__ = ()
    also = ("gloo", "mpi")

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or other in self.also

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.also[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--backend", default="netoffload")
    parser.add_argument("-k", dest="words", default="", help="only tests whose name has these letters")
    parser.add_argument("--quick", action="store_true", help="leave out the longest")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"WORLD_SIZE": str(options.ranks), "TEMP_DIR": folder, "OMP_NUM_THREADS": "1"}
        prepare(options.backend)
        names = [name for name in test_names(options.backend) if options.words in name]
        names = [name for name in names if not (options.quick and NOT_QUICK.search(name))]
        found = {name: run_test(options.backend, name, not options.json) for name in names}
    return report(found, options.json)


def prepare(backend: str) -> None:
    """Load once what every rank needs."""
    import torch

    torch.set_num_threads(1)
    if backend == "netoffload":
        from netoffload.torch import backend_group
        from netoffload.transport.rounds import driver

        assert backend_group
        driver.prepare()


def load(backend: str) -> Any:
    """Return the module of tests, made for a backend: its decorators compare the name when it is imported."""
    with contextlib.suppress(ImportError):
        importlib.import_module("expecttest")
    if "expecttest" not in sys.modules:  # torch's tests inherit from it; those here do not use what it adds
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    if SUITE not in sys.modules:
        kind = type(os.environ)
        plain = kind.__getitem__

        def lookup(self: Any, key: str) -> str:
            if key == "BACKEND":
                return Backend(backend) if backend == "netoffload" else backend
            return plain(self, key)

        mock.patch.object(kind, "__getitem__", lookup).start()  # for ever: the ranks look it up as well
        cases = importlib.import_module("torch.testing._internal.common_distributed").DistTestCases
        cases.backend_feature["plugin"].add(backend)
        importlib.import_module(SUITE)
        logging.getLogger().setLevel(logging.CRITICAL)
    return sys.modules[SUITE]


def test_names(backend: str) -> Iterator[str]:
    return (name for name in dir(load(backend).DistributedTest._DistTestBase) if name.startswith("test_"))


def run_test(backend: str, name: str, is_shown: bool) -> tuple[str, str, float]:
    """Run one test on all ranks; return ``passed``, ``skipped`` or ``failed``, the reason, and the seconds."""
    suite, multi = load(backend), sys.modules["torch.testing._internal.common_distributed"]

    class Ranks(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc,name-defined]
        def setUp(self) -> None:
            super().setUp()
            context = suite.torch.multiprocessing.get_context("fork")
            self._start_processes(context.Process)

    result, start_s = unittest.TestResult(), time.monotonic()
    with mock.patch.object(multi, "get_timeout", return_value=LIMIT_S), contextlib.redirect_stdout(io.StringIO()):
        Ranks(name).run(result)
    seconds = time.monotonic() - start_s
    if result.skipped:
        found = "skipped", result.skipped[0][1], seconds
    elif troubles := [*result.errors, *result.failures]:
        found = "failed", troubles[0][1], seconds
    else:
        found = "passed", "", seconds
    if is_shown and found[0] != "skipped":
        print(f"{name}: {found[0]} in {seconds:.1f} s", *found[1].splitlines()[-12:], sep="\n  ", flush=True)
    return found


def report(found: dict[str, tuple[str, str, float]], is_json: bool) -> int:
    """Print what became of the tests; return 0 if only those fail that have a reason."""
    by_end = {
        end: sorted(name for name, one in found.items() if one[0] == end) for end in ("passed", "failed", "skipped")
    }
    unexpected = [name for name in by_end["failed"] if name not in REASONS]
    mended = [name for name in by_end["passed"] if name in REASONS]
    if is_json:
        reasons = {name: found[name][1] for name in by_end["skipped"]}
        times = {name: round(one[2], 1) for name, one in found.items() if one[2] > 2}
        print(json.dumps({**by_end, "times": times, "unexpected": unexpected, "mended": mended, "reasons": reasons}))
    else:
        print(", ".join(f"{len(names)} {end}" for end, names in by_end.items()))
        for text, names in (("failed without a reason", unexpected), ("passed with a reason", mended)):
            print(f"{text}: {', '.join(names) or 'none'}")
    return len(unexpected) + len(mended) > 0


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2])]
    sys.exit(main())
