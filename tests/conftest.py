"""Fixtures and settings of every test."""

import gc
import itertools
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from netoffload.compiled.progress import PROGRESS
from netoffload.netlink import Namespace, netns_path, remove_netns
from tests.shared.commands import forget_tables
from tests.shared.example_counts import ALL_PERCENT
from tests.shared.quick_cases import NIGHT

# The first example of a property may compile a kernel, and a busy machine may take its core away: time is no property.
settings.register_profile("netoffload", deadline=None, max_examples=ALL_PERCENT if NIGHT else ALL_PERCENT // 3)
# For ./scripts/check, and for kernels that run as plain Python.
settings.register_profile("quick", deadline=None, max_examples=10)
COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
settings.load_profile("netoffload" if COMPILED else "quick")

# Threads of BLAS wait for one another in a loop, in every worker of xdist.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# MPICH's waiting ranks call sched_yield without pause. With more ranks than cores, Linux 6.18 then starves everything
# else for minutes ("workqueue lockup"). Ranks that sleep between polls leave the cores to whoever has work.
os.environ.setdefault("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")

# Background jobs of a shell ignore Ctrl-C, and what they start inherits that; it does not inherit a handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A kernel that is compiled in the middle of a test says nothing: many tests look at all of standard error.
PROGRESS._next_s = 1e6

# What is imported stays until the end: a collector that looks through all of it costs a tenth of the time of all tests.
gc.disable()


def pytest_collection_finish() -> None:
    """Leave everything that the test modules imported out of later garbage collections."""
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of ``netns``, and as slow what ``covering`` leaves out; leave out the night's tests; sort."""
    grids: dict[tuple[str, int], list[Any]] = {}
    for item in items:
        if item.path.parent.name == "netns":
            item.add_marker("netns")
        marker = item.get_closest_marker("covering")
        if marker is not None:
            grids.setdefault((item.nodeid.partition("[")[0], *marker.args), []).append(item)
    if not NIGHT:
        nightly = [item for item in items if item.get_closest_marker("night")]
        items[:] = [item for item in items if item not in nightly]
        config.hook.pytest_deselected(items=nightly)
    # A test that may take long begins early: at the end, the other workers would wait for it.
    longest_s: dict[Path, float] = {}
    for item in items:
        limit = item.get_closest_marker("timeout")
        longest_s[item.path] = max(longest_s.get(item.path, 0), limit.args[0] if limit else 0)
    items.sort(key=lambda item: -longest_s[item.path])
    left_out: set[pytest.Item] = set()
    for (_, strength), cases in grids.items():
        left_out.update(not_in_covering_array(cases, strength))
    for item in left_out:
        item.add_marker(pytest.mark.slow)
    if left_out and not COMPILED:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Take down the testbeds of workers that ended in the middle of a test, as after a Ctrl-C."""
    if hasattr(session.config, "workerinput"):
        return
    # xdist's workers work in folders below this one, and have ended.
    folder = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    for journal in list(folder.rglob("journal.jsonl")):
        from netoffload.lab.testbed.build import down  # the product's tests pass without the laboratory
        from netoffload.lab.testbed.plan import ENV_STATE_DIR

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(ENV_STATE_DIR, str(journal.parents[1]))
            down(journal.parent.name)


def not_in_covering_array(cases: list[Any], strength: int) -> list[Any]:
    """Return the cases beyond some that have every combination of the values of any ``strength`` parameters."""
    having = {}
    for case in reversed(cases):
        values = ((name, id(value)) for name, value in case.callspec.params.items())
        having[case] = set(itertools.combinations(values, strength))
    missing = set().union(*having.values())
    while missing:
        most = max(having, key=lambda case: len(having[case] & missing))
        missing -= having.pop(most)
    return list(having)


@pytest.fixture
def wire() -> Iterator[str]:
    """The path of a network namespace of its own, in which there is a wire for a NIC: ``w0``."""
    name = f"not-{secrets.token_hex(3)}"
    with Namespace.create(name) as namespace:
        try:
            namespace.add_veth("w0", "w1", None, 1500)
            for end in ("w0", "w1"):
                namespace.set_up(end)
            yield str(netns_path(name))
        finally:
            forget_tables(name)
            remove_netns(name)
