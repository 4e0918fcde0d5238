"""mpi4py's own tests for buffers, with their float32 calls turned into ``_comp``: a command, not a test module.

    mpiexec -n 3 python -m mpi4py -m tests.mpi.mpi4py_suite [--tests FOLDER] [--only-float32] [-k WORDS]

The tests are mpi4py's and are not kept here. ``--tests`` or ``$NETOFFLOAD_MPI4PY_TESTS`` names the folder ``test`` of
the sources of the installed mpi4py; without it pip downloads them. ``MPI.COMM_WORLD`` and ``MPI.COMM_SELF`` become
:class:`TurnedComm`: a call with float32 buffers goes to its ``_comp``, every other call to MPI. The command counts the
calls of both kinds, with the reasons. An error on any rank makes it fail. Nine of ten calls have other types, and show
that these and ours do not disturb each other; ``--only-float32`` leaves out those of arrays.
"""

import argparse
import contextlib
import importlib
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ENV_TESTS = "NETOFFLOAD_MPI4PY_TESTS"  # environment variable with the folder of mpi4py's tests

MODULES = (
    "test_cco_buf",
    "test_cco_nb_buf",
    "test_cco_vec",
    "test_cco_nb_vec",
    "test_p2p_buf",
    "test_msgspec",
    "test_msgzero",
)

STAND_INS = {"Bsend": "Send", "Ssend": "Send", "Rsend": "Send", "Ibsend": "Isend", "Issend": "Isend", "Irsend": "Isend"}
"""Modes of sending, which are one here: what is received does not depend on them."""


CPU = 1  # DLPack's number of it


class NoSourcesError(SystemExit):
    """The sources of mpi4py cannot be had."""


def given_tests() -> Path | None:
    return Path(os.environ[ENV_TESTS]) if os.environ.get(ENV_TESTS) else None


def main() -> int:
    from mpi4py import MPI

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=Path, default=given_tests(), help=f"folder; default: ${ENV_TESTS}")
    parser.add_argument("--only-float32", action="store_true", help="no arrays of other types, or in GPU memory")
    parser.add_argument("-k", dest="words", default="", help="only tests whose name has these letters")
    options, world = parser.parse_args(), MPI.COMM_WORLD
    with tests_folder(options.tests) if world.rank == 0 else contextlib.nullcontext(Path()) as found:
        folder = world.bcast(found)
        failed = run_rank(folder, options.words, only_float32=options.only_float32)
        MPI.Intracomm(world).Barrier()
    return failed


@contextlib.contextmanager
def tests_folder(given: Path | None) -> Iterator[Path]:
    """Yield the folder of mpi4py's tests: the one that is given, else one that is downloaded and thrown away."""
    if given is not None:
        if not (Path(given) / f"{MODULES[0]}.py").exists():
            raise SystemExit(f"{given} holds no {MODULES[0]}.py: give the folder test of mpi4py's sources")
        yield Path(given)
        return
    wanted = f"mpi4py=={version('mpi4py')}"
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--no-binary", "mpi4py", "-d", scratch, wanted]
        # Without isolation pip installs nothing to read the name of a package, and is done in a tenth of the time.
        ways = ([*command, "--no-build-isolation"], command)
        if all(subprocess.run(way, check=False, stderr=subprocess.DEVNULL).returncode for way in ways):
            raise NoSourcesError(
                f"pip could not download the sources of {wanted}: name their folder test in ${ENV_TESTS}"
            )
        (archive,) = Path(scratch).glob("mpi4py-*.tar.gz")
        with tarfile.open(archive) as sources:
            sources.extractall(scratch, filter="data")
        yield Path(scratch) / archive.name.removesuffix(".tar.gz") / "test"


def run_rank(folder: Path, words: str, *, only_float32: bool) -> int:
    """Run the tests on this rank beside the others, and return whether any of them failed anywhere."""
    from mpi4py import MPI

    world, comms = MPI.COMM_WORLD, turn_communicators()
    start_s = time.monotonic()
    passed, skipped, failed = 0, [], []
    for test in load_tests(folder, words, only_float32=only_float32):
        result = unittest.TestResult()
        test.run(result)
        troubles = [text for _, text in (*result.errors, *result.failures)]
        skipped += [f"{test.id()}: {reason}" for _, reason in result.skipped]
        for text in troubles:
            print(f"rank {world.rank}, {test.id()}:\n{text}", file=sys.stderr, flush=True)
        if any(world.allgather(bool(troubles))):  # none goes on alone
            failed.append(test.id())
            for comm in comms:
                comm.close()
        else:
            passed += not result.skipped
    for comm in comms:
        comm.close()
    if world.rank == 0:
        report(passed, skipped, failed, time.monotonic() - start_s)
    return len(failed) > 0


def turn_communicators() -> list[Any]:
    from mpi4py import MPI

    kind = make_turned_comm()
    MPI.COMM_WORLD, MPI.COMM_SELF = kind(MPI.COMM_WORLD), kind(MPI.COMM_SELF)  # type: ignore[misc]
    return [MPI.COMM_WORLD, MPI.COMM_SELF]


def load_tests(folder: Path, words: str, *, only_float32: bool) -> list[unittest.TestCase]:
    """Return the tests whose names have ``words`` in them, in the same order on every rank."""
    sys.path.insert(0, str(folder))
    hidden = {name: sys.modules.pop(name, None) for name in ("numba", "numba.cuda", "cupy")}  # they would look for GPUs
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    arrays = importlib.import_module("arrayimpl")
    # dlpackimpl counts an array's references, and a thread of ours may drop one between two counts.
    uncounted = {name: value for name, value in vars(sys).items() if name != "getrefcount"}
    importlib.import_module("dlpackimpl").sys = SimpleNamespace(**uncounted)  # type: ignore[attr-defined]
    for name, module in hidden.items():
        del sys.modules[name]
        if module is not None:
            sys.modules[name] = module
    if only_float32:
        arrays.ArrayBackends[:] = [kind for kind in arrays.ArrayBackends if not kind.__name__.startswith("FakeGPU")]
        for kind in arrays.ArrayBackends:
            kind.TypeMap = {"f": kind.TypeMap["f"]}
    loader = unittest.TestLoader()
    cases = [loader.loadTestsFromModule(importlib.import_module(name)) for name in MODULES]
    return [test for test in flatten(unittest.TestSuite(cases)) if words in test.id()]


def flatten(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flatten(item)
        else:
            yield item


counts: Counter[str] = Counter()
left: Counter[str] = Counter()


def make_turned_comm() -> Any:
    """Return the class TurnedComm; here, so that the launcher needs no MPI."""
    from netoffload_mpi import CompComm

    class TurnedComm(CompComm):
        """A CompComm whose calls with float32 buffers are its ``_comp`` ones."""

    ours = {name.removesuffix("_comp"): name for name in dir(CompComm) if name.endswith("_comp") and name[0].isupper()}
    for name, target in (ours | {name: f"{stand_in}_comp" for name, stand_in in STAND_INS.items()}).items():
        setattr(TurnedComm, name, turned(name, getattr(CompComm, name), getattr(CompComm, target)))
    return TurnedComm


def turned(name: str, plain: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call that is ``ours`` for float32 and ``plain`` for the rest."""

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        reason = why_plain(name, [*arguments, *named.values()])
        if reason is None:
            counts[name] += 1
            return ours(self, *arguments, **named)
        left[reason] += 1
        return plain(self, *arguments, **named)

    return call


def why_plain(name: str, arguments: list[Any]) -> str | None:
    """Return why a call is left to MPI; None: it is ours. Every rank of a call finds the same."""
    from mpi4py import MPI

    if name == "Barrier" or (arguments and arguments[0] is None and MPI.PROC_NULL in filter(is_integer, arguments)):
        return None
    kinds = {kind_of(argument) for argument in arguments} - {None}
    return None if kinds == {"f"} else next(iter(sorted(map(str, kinds - {"f"}))), "no buffer")


def is_integer(value: object) -> bool:
    """Return whether a value may be a rank; MPI's constants and arrays do not compare as ranks do."""
    return type(value) is int


def kind_of(spec: Any) -> str | None:
    """Return what a buffer holds: ``f`` or the reason why it is not ours; None: this is no buffer."""
    from mpi4py import MPI

    from netoffload_mpi import buffers

    if isinstance(spec, list | tuple):
        for part in spec:
            if isinstance(part, MPI.Datatype) and part != MPI.FLOAT:
                return "other types than float32" if part.is_predefined else "types made of others"
            if isinstance(part, str) and part != "f":
                return "other types than float32"
        return "f" if len(spec) == 0 or spec[0] is None else kind_of(spec[0])
    if spec is None or isinstance(spec, int | MPI.Op | MPI.Status | type(MPI.IN_PLACE)):
        return None
    kind: str | None
    try:
        kind = memoryview(spec).format
    except TypeError:
        if not hasattr(spec, "__dlpack__"):
            return "GPU memory" if hasattr(spec, "__cuda_array_interface__") else None
        if spec.__dlpack_device__()[0] != CPU:
            return "GPU memory"
        kind = "f" if buffers._dlpack_type(spec) == buffers._FLOAT32 else None
    return "f" if kind == "f" else "other types than float32"


def report(passed: int, skipped: list[str], failed: list[str], seconds: float) -> None:
    reasons = Counter(text.rsplit(": ", 1)[1] for text in skipped)
    for reason, number in reasons.items():
        print(f"left out by mpi4py for want of {reason}: {number}")
    for text in failed:
        print(f"FAILED: {text}")
    print(
        f"calls through _comp: {sum(counts.values())}: " + ", ".join(f"{n} {name}" for name, n in counts.most_common())
    )
    print("left to MPI: " + ", ".join(f"{n} {reason}" for reason, n in left.most_common()))
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} left out, {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
