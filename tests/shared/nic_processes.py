"""The processes of a testbed's NICs, which are nobody's children."""

import os
import select

from netoffload.lab.testbed import Testbed, nics
from netoffload.lab.testbed.journal import read_run

END_S = 10


def nic_pids(bed: Testbed) -> list[int]:
    """Return the pid of every node's NIC."""
    record = read_run(bed.plan.state_dir)
    assert record is not None
    return [state["pid"] for state in nics.states(record).values()]


def wait_for_end_of_nic(bed: Testbed, node_index: int) -> None:
    """Return when a node's NIC has ended."""
    try:
        pidfd = os.pidfd_open(nic_pids(bed)[node_index])
    except ProcessLookupError:
        return
    try:
        assert select.select([pidfd], [], [], END_S)[0], "the NIC goes on"
    finally:
        os.close(pidfd)
