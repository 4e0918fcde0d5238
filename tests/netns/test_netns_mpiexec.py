"""The user's own launcher: plain mpiexec, a host file or Slurm's variables, and a real sshd on every node.

No code of netoffload starts the ranks. The user types on node n0, and the ranks run on the other nodes.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from netoffload.lab.testbed import Testbed
from netoffload.lab.testbed.launch import OPENMPI_ENV, find_mpiexec, find_openmpi
from tests.netns.programs.sshd import hosts
from tests.shared.beds import counters
from tests.shared.quick_cases import by_day

pytestmark = pytest.mark.mpi

PROGRAM = str(Path(__file__).with_name("programs") / "sum_compressed.py")


def mpiexec(bed: Testbed, words: list[str], env: dict[str, str]) -> str:
    """Type a command on n0, as somebody who knows nothing of testbeds; return what it printed."""
    own = {name: value for name, value in bed.node_env(bed.plan.nodes[0]).items() if not name.startswith("NETOFFLOAD_")}
    mark_name, _, mark_value = bed.plan.mark.partition("=")
    done = subprocess.run(
        bed.entry_argv(bed.plan.nodes[0], words),
        env={**own, mark_name: mark_value, **env},
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


EXPECTED = "True inceptionn True [('n1', False, 6.0), ('n2', False, 6.0), ('n3', False, 6.0)]"
OVER_TCP = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "inc0"}
SLURM = {
    "SLURM_JOBID": "1",
    "SLURM_NODELIST": "n[1-3]",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_NNODES": "3",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_TASKS_PER_NODE": "1(x3)",
}


@pytest.mark.parametrize("hosts_from", by_day(["host file", "Slurm"], ["Slurm"]))
def test_mpich_reaches_the_nodes_through_ssh(nic_bed: Testbed, tmp_path: Path, hosts_from: str) -> None:
    launcher = find_mpiexec()
    if launcher is None:
        pytest.skip("MPICH is missing")
    (tmp_path / "hosts").write_text("n1:1\nn2:1\nn3:1\n")
    before = [counters(nic_bed, node)["tx_raw_octets"] for node in range(4)]
    with hosts(nic_bed, tmp_path) as ssh:
        words = [str(launcher), "-launcher", "ssh", "-launcher-exec", str(ssh), "-iface", "inc0", "-n", "3"]
        words += ["-rmk", "slurm"] if hosts_from == "Slurm" else ["-f", str(tmp_path / "hosts")]
        words += [sys.executable, "-m", "mpi4py", PROGRAM]
        said = mpiexec(nic_bed, words, {**OVER_TCP, **(SLURM if hosts_from == "Slurm" else {})})
    assert said.strip() == EXPECTED
    compressed = [counters(nic_bed, node)["tx_raw_octets"] - then for node, then in enumerate(before)]
    payload_octets = 2 * 2 / 3 * 1_000_000  # of each rank in a ring of three
    assert compressed[0] == 0
    assert all(0.9 * payload_octets < octets for octets in compressed[1:])


def test_open_mpi_reaches_the_nodes_through_ssh(nic_bed: Testbed, tmp_path: Path) -> None:
    prefix = find_openmpi()
    if prefix is None:
        pytest.skip("Open MPI 5 is missing")
    (tmp_path / "hosts").write_text("n1 slots=1\nn2 slots=1\nn3 slots=1\n")
    with hosts(nic_bed, tmp_path) as ssh:
        env = {**OPENMPI_ENV, "MPI4PY_LIBMPI": str(prefix / "lib/libmpi.so.40"), "PRTE_MCA_plm_ssh_agent": str(ssh)}
        env |= {"PRTE_MCA_prte_if_include": "inc0", "OMPI_MCA_btl_tcp_if_include": "inc0"}
        words = [str(prefix / "bin/mpiexec"), "--hostfile", str(tmp_path / "hosts"), "-n", "3", "-x", "MPI4PY_LIBMPI"]
        words += ["-x", "PYTHONPATH", sys.executable, "-m", "mpi4py", PROGRAM]
        said = mpiexec(nic_bed, words, env)
    assert said.replace("\x1b[0m", "").strip() == EXPECTED  # its mpiexec ends lines as a terminal does
