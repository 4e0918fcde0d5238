"""What ``netoffload doctor`` looks for on behalf of testbeds: programs, launchers of ranks, runs that are left over."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from netoffload.lab.testbed.journal import list_runs
from netoffload.lab.testbed.launch import find_mpiexec, find_openmpi
from netoffload.machine.doctor import Check, check


def checks() -> Iterator[Check]:
    """Run the laboratory's checks."""
    for name, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("mount", "mount"), ("hostname", "hostname")):
        found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin")
        yield check(f"program {name}", found is not None, found or "missing", f"apt-get install {package}")
    mpiexec = find_mpiexec()
    advice = "pip install 'netoffload[mpi]'"
    yield check("MPICH", mpiexec is not None, str(mpiexec or "missing"), advice, required=False)
    openmpi = find_openmpi()
    advice = "only for --mpi openmpi, which says how to get it"
    yield check("Open MPI 5", openmpi is not None, str(openmpi or "missing"), advice, required=False)
    runs = list_runs()
    stale = [run.run_id for run in runs if run.is_stale]
    detail = f"{len(runs)} up" + (f", owner gone: {', '.join(stale)}" if stale else "")
    yield check("runs", not stale, detail, "netoffload down " + " ".join(stale), required=False)
