"""A network of emulated nodes on one machine: namespaces as data, then as kernel state, always undone.

One node, with its NIC (left) and without (right)::

    no-<run>-n0            inc0 (TAP)              no-<run>-n0    inc0 (veth end, tbf)
         │ NIC process: opens the TAP here                             │
    no-<run>-n0w           wire0 (veth end, tbf)                       │
         │                                                             │
    no-<run>-sw   ═══ p0 (veth end, tbf) ═══ br0 (bridge) ═══ p1 ══════╯

``plan`` names everything and does no I/O. ``journal`` records each object before ``build`` makes it. ``build`` needs
only the journal to take everything down. ``processes`` tells our processes from others. ``nics`` starts one NIC process
per node with ``nic_loader``, and restarts it; ``controls`` finds NICs by name. ``probe`` measures a wire's real rate,
with the program ``traffic`` on two nodes. ``meter`` serves the wires' counters to programs on the nodes. ``stream``
sends a tagged stream between two nodes and compares every value. ``launch`` runs one rank per node
(``launch_backends``: two MPIs and torchrun; ``launch_agents`` starts torchrun's agents; ``launch_output`` passes on the
ranks' output). With ``forks`` ranks and NICs start with their imports done: ``fork_client`` asks ``fork_server`` for a
fork.
``doctor`` says what this machine has and lacks.
"""

from netoffload.lab.testbed.build import Testbed, WireCounters, down, find_run, reap_stale
from netoffload.lab.testbed.forks import prepared_ranks
from netoffload.lab.testbed.journal import RunRecord, list_runs, plan_of_run
from netoffload.lab.testbed.launch import run_local_ranks, run_ranks
from netoffload.lab.testbed.meter import Meter
from netoffload.lab.testbed.nics import Restart
from netoffload.lab.testbed.plan import NodePlan, Plan, TestbedSettings, make_plan, new_run_id, state_root
from netoffload.nic_options import NicSettings

__all__ = [
    "Meter",
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
    "new_run_id",
    "plan_of_run",
    "prepared_ranks",
    "reap_stale",
    "run_local_ranks",
    "run_ranks",
    "state_root",
]
