"""A real sshd on every node of a testbed.

sshd_config sets the variables that a host's administrator would set for logins (the NIC's control socket).
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from netoffload.lab.testbed import Testbed

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin:" + os.environ.get("PATH", ""))
SSH = shutil.which("ssh")
PRIVATE_RUN = 'mount -t tmpfs -o size=1m run /run && mkdir -m 755 /run/sshd && exec "$@"'
"""sshd insists on this folder, which the ssh service makes when it starts; the mount is seen on this node only."""
START_S = 30.0


@contextlib.contextmanager
def hosts(bed: Testbed, folder: Path) -> Iterator[Path]:
    """Run a real sshd on every node; gives a program that calls ssh with the right keys: those of ``ssh_config``."""
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
                "Subsystem": "sftp internal-sftp",
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
