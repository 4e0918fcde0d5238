"""Fixtures and settings of every test."""

from __future__ import annotations

import gc
import os
import secrets
from collections.abc import Iterator

import pytest
from hypothesis import settings

from netoffload.netlink import Namespace, netns_path, remove_netns

# The first example of a property may compile a kernel, and a busy machine may take its core away: time is no property.
settings.register_profile("netoffload", deadline=None)
# For ./scripts/check, and for kernels that run as plain Python.
settings.register_profile("quick", deadline=None, max_examples=10)
settings.load_profile("netoffload" if os.environ.get("NUMBA_DISABLE_JIT", "0") == "0" else "quick")

# MPICH's waiting ranks call sched_yield without pause. With more ranks than cores, Linux 6.18 then starves everything
# else for minutes ("workqueue lockup"). Ranks that sleep between polls leave the cores to whoever has work.
os.environ.setdefault("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")

# What is imported stays until the end: a collector that looks through all of it costs a tenth of the time of all tests.
gc.disable()


def pytest_collection_finish() -> None:
    """Leave everything that the test modules imported out of later garbage collections."""
    gc.freeze()
    gc.enable()


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
            remove_netns(name)
