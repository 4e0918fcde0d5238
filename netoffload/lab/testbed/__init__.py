"""A network of emulated nodes on one machine: namespaces as data, then as kernel state, always undone.

One node, with its NIC (left) and without (right)::

    no-<run>-n0            inc0 (TAP)              no-<run>-n0    inc0 (veth end, tbf)
         │ NIC process: opens the TAP here                             │
    no-<run>-n0w           wire0 (veth end, tbf)                       │
         │                                                             │
    no-<run>-sw   ═══ p0 (veth end, tbf) ═══ br0 (bridge) ═══ p1 ══════╯

``plan`` names everything and does no I/O. ``journal`` records each object before ``build`` makes it with ``links``, the
kernel's links and queues. ``build`` needs only the journal to take everything down, measures the wires' real rate, and
serves the wires' counters to programs on the nodes. ``processes`` tells our processes from others. ``nics`` starts one
NIC process per node, and restarts it. ``stream_end`` is the one program at the ends of streams; ``stream`` runs a
stream or a ping-pong between two nodes and compares every value. ``launch`` runs one rank per node, by two MPIs or
torchrun. With ``forks`` ranks and NICs start with their imports done.
"""

from netoffload.lab.testbed.build import Testbed, WireCounters, down, find_run, metered, reap_stale
from netoffload.lab.testbed.forks import prepared_ranks
from netoffload.lab.testbed.journal import RunRecord, list_runs, plan_of_run
from netoffload.lab.testbed.launch import run_ranks
from netoffload.lab.testbed.nics import Restart
from netoffload.lab.testbed.plan import (
    LinkRate,
    NodePlan,
    Plan,
    TestbedSettings,
    make_plan,
    new_run_id,
    parse_links,
    state_root,
)
from netoffload.nic_options import NicSettings

__all__ = [
    "LinkRate",
    "NicSettings",
    "NodePlan",
    "Plan",
    "Restart",
    "RunRecord",
    "Testbed",
    "TestbedSettings",
    "WireCounters",
    "down",
    "find_run",
    "list_runs",
    "make_plan",
    "metered",
    "new_run_id",
    "parse_links",
    "plan_of_run",
    "prepared_ranks",
    "reap_stale",
    "run_ranks",
    "state_root",
]
