"""The user's own launcher: plain mpiexec, a host file or Slurm's variables, and a real sshd on every node.

No code of netoffload starts the ranks. The user types on node n0, and the ranks run on the other nodes. sshd_config
sets the variables that a host's administrator would set for logins (the NIC's control socket).
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from netoffload.lab.testbed import Testbed
from netoffload.lab.testbed.launch import OPENMPI_ENV, find_mpiexec, find_openmpi
from tests.shared.beds import counters
from tests.shared.quick_cases import by_day

pytestmark = pytest.mark.mpi

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin:" + os.environ.get("PATH", ""))
SSH = shutil.which("ssh")
PRIVATE_RUN = 'mount -t tmpfs -o size=1m run /run && mkdir -m 755 /run/sshd && exec "$@"'
"""sshd insists on this folder, which the ssh service makes when it starts; the mount is seen on this node only."""
START_S = 10.0
PROGRAM = str(Path(__file__).with_name("programs") / "sum_compressed.py")


@contextlib.contextmanager
def hosts(bed: Testbed, folder: Path) -> Iterator[Path]:
    """Run a real sshd on every node; gives a program that calls ssh with the right keys."""
    if SSHD is None or SSH is None or shutil.which("ssh-keygen") is None:
        pytest.skip("needs ssh, ssh-keygen and sshd: apt-get install openssh-server")
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    host_key = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text("".join(f"{node.name} {host_key}" for node in bed.plan.nodes))
    options = {
        "IdentityFile": folder / "user_key",
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": folder / "known_hosts",
        "StrictHostKeyChecking": "yes",
        "LogLevel": "ERROR",
    }
    (folder / "ssh_config").write_text("".join(f"{key} {value}\n" for key, value in options.items()))
    ssh = folder / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {SSH} -F {folder}/ssh_config "$@"\n')
    ssh.chmod(0o700)
    with contextlib.ExitStack() as stack:
        for node in bed.plan.nodes:
            settings = {
                "Port": 22,
                "ListenAddress": node.address,
                "HostKey": folder / "host_key",
                "AuthorizedKeysFile": folder / "user_key.pub",
                "PidFile": "none",
                "StrictModes": "no",  # the keys lie below a folder that everybody may write
                "UsePAM": "no",
                "PasswordAuthentication": "no",
                "PermitRootLogin": "prohibit-password",
                "SetEnv": f"{bed.plan.mark} NETOFFLOAD_CONTROL={node.control_path}",
            }
            config = folder / f"sshd_config-{node.name}"
            config.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
            log = stack.enter_context(open(folder / f"sshd-{node.name}.log", "wb"))
            command = ["/bin/sh", "-c", PRIVATE_RUN, "sshd", SSHD, "-D", "-e", "-f", str(config)]
            sshd = bed.popen(node.index, command, stderr=log)
            stack.callback(sshd.wait)
            stack.callback(sshd.terminate)
        for node in bed.plan.nodes[1:]:
            _await_login(bed, ssh, node.name)
        yield ssh


def _await_login(bed: Testbed, ssh: Path, name: str) -> None:
    deadline = time.monotonic() + START_S
    while True:
        tried = bed.popen(0, [str(ssh), name, "true"], stderr=subprocess.PIPE, text=True)
        error = tried.communicate(timeout=START_S)[1]
        if tried.returncode == 0:
            return
        assert time.monotonic() < deadline, error


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


EXPECTED = "True inceptionn [('n1', False, 6.0), ('n2', False, 6.0), ('n3', False, 6.0)]"
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
