"""What the laboratory adds to commands of the product, by name (``netoffload.cli.known.lab_offer``).

``checks`` is what ``netoffload doctor`` looks for on behalf of testbeds. ``nic_controls`` finds the control sockets of
the NICs that run here: a NIC of a testbed is ``n0``, or ``RUN/n0`` where several runs are up; any other NIC is the path
of its control socket.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from netoffload.control import NicControl
from netoffload.errors import SystemRefusedError, UsageError
from netoffload.lab.testbed.build import find_run
from netoffload.lab.testbed.journal import list_runs, plan_of_run
from netoffload.lab.testbed.launch import find_mpiexec, find_openmpi
from netoffload.lab.testbed.links import TestbedNamespace
from netoffload.lab.testbed.plan import RUN_ID
from netoffload.lab.testbed.processes import find_program
from netoffload.machine.doctor import Check, check, try_out

_RUN_AND_NODE: Final = re.compile(rf"{RUN_ID.pattern}/n\d+")


def nic_controls(wanted: str | None = None) -> list[NicControl]:
    """Return the NIC called ``wanted`` (node, ``RUN/node``, or path of a control socket), or all of all testbeds."""
    known = [
        NicControl(f"{record.run_id}/{node.name}", node.control_path)
        for record in list_runs()
        for node in plan_of_run(record).nodes
        if node.control_path is not None and record.ready
    ]
    if wanted is None:
        if not known:
            hint = "" if os.geteuid() == 0 else " (others than root do not see root's testbeds)"
            raise UsageError(
                f"no NIC runs in a testbed here{hint}: `netoffload up -n 2` starts two, or name a control socket"
            )
        return known
    found = [nic for nic in known if wanted in (nic.name, nic.name.partition("/")[2])]
    if len(found) == 1:
        return found
    if found:
        raise UsageError(f"{len(found)} NICs are called {wanted}, say which: {', '.join(nic.name for nic in found)}")
    if Path(wanted).exists() or (os.sep in wanted and not _RUN_AND_NODE.fullmatch(wanted)):
        return [NicControl(wanted, Path(wanted))]
    if "/" in wanted:
        find_run(wanted.partition("/")[0])  # if the run does not exist, this raises the clearer error
    names = ", ".join(nic.name for nic in known) or "none runs in a testbed here"
    raise UsageError(f"no NIC {wanted!r}: give one of these, or the path of a control socket: {names}")


def checks() -> Iterator[Check]:
    """Run the laboratory's checks."""
    for name, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("mount", "mount"), ("hostname", "hostname")):
        found = find_program(name)
        yield check(f"program {name}", found is not None, found or "missing", f"apt-get install {package}")
    for name, path, advice in (
        ("MPICH", find_mpiexec(), "pip install 'netoffload[mpi]'"),
        ("Open MPI 5", find_openmpi(), "only for --mpi openmpi, which says how to get it"),
    ):
        yield check(name, path is not None, str(path or "missing"), advice, required=False)
    runs = list_runs()
    stale = [run.run_id for run in runs if run.is_stale]
    detail = f"{len(runs)} up" + (f", owner gone: {', '.join(stale)}" if stale else "")
    yield check("runs", not stale, detail, "netoffload down " + " ".join(stale), required=False)
    with contextlib.suppress(SystemRefusedError):  # no network namespaces, as the product's check says
        yield from _links()


def _links() -> Iterator[Check]:
    """Try the kernel objects of testbeds in a namespace without a name."""
    with TestbedNamespace.anonymous() as namespace:
        namespace.add_veth("v0", "v1", None, 1500)
        yield try_out("bridge", lambda: namespace.add_bridge("br0", 1500), "needs CONFIG_BRIDGE (modprobe bridge)")
        yield try_out("tbf", lambda: namespace.add_tbf("v0", 10**9, 131072, 4194304), "needs CONFIG_NET_SCH_TBF")
        yield try_out(
            "u32 filter", lambda: namespace.add_ingress_counter("v0"), "needs CONFIG_NET_CLS_U32: counts frames"
        )

        def give_route() -> None:
            for name in ("v0", "v1"):
                namespace.set_up(name)
            namespace.add_address("v0", "10.98.1.1", "10.98.1.0/24", "cubic")

        yield try_out("cubic by route", give_route, "needs CONFIG_TCP_CONG_CUBIC (modprobe tcp_cubic)")
