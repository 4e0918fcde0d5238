"""A network of emulated nodes on one machine: namespaces as data, then as kernel state, always undone.

One node, with its NIC (left) and without (right)::

    no-<run>-n0            inc0 (TAP)              no-<run>-n0    inc0 (veth end, tbf)
         │ NIC process: opens the TAP here                             │
    no-<run>-n0w           wire0 (veth end, tbf)                       │
         │                                                             │
    no-<run>-sw   ═══ p0 (veth end, tbf) ═══ br0 (bridge) ═══ p1 ══════╯

``plan`` names everything and does no I/O. ``journal`` writes down what is made before it is made. ``build`` makes it,
and takes it down from the journal alone. ``processes`` knows which processes are ours. ``nics`` starts one NIC process
per node, and restarts it; ``controls`` finds them by name. ``probe`` (with ``traffic``, the program it runs on two
nodes) measures what a wire really carries. ``meter`` serves the wires' counters to whoever runs on a node. ``stream``
sends a tagged stream between two nodes and compares every value. ``launch`` runs one rank per node
(``launch_backends``: two MPIs and torchrun; ``launch_agents`` starts torchrun's agents; ``launch_output``: what ranks
say). ``forks`` has ranks start with their imports done, as forks of ``fork_server``, which ``fork_client`` asks for
them. ``doctor`` says what this machine has and lacks.
"""

from netoffload.nic_options import NicSettings
from netoffload.testbed.build import Testbed, WireCounters, down, find_run, reap_stale
from netoffload.testbed.forks import prepared_ranks
from netoffload.testbed.journal import RunRecord, list_runs, plan_of_run
from netoffload.testbed.launch import run_local_ranks, run_ranks
from netoffload.testbed.meter import Meter
from netoffload.testbed.nics import Restart
from netoffload.testbed.plan import NodePlan, Plan, TestbedSettings, make_plan, new_run_id, state_root

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
