"""Which rank of which attempt a process is, from the environment that ``torchrun``, ``mpiexec`` or Slurm sets."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Mapping, MutableMapping
from typing import Final, NamedTuple

LAUNCHERS: Final = (
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
)
"""Variables of rank, number of ranks and rank on its host, as MPICH and Open MPI name them."""

PORT_DEFAULT: Final = "29500"

ENV_GLOO: Final = "GLOO_SOCKET_IFNAME"
"""Environment variable with the interface at whose address gloo listens."""

_SIOCGIFADDR: Final = 0x8915
_IFREQ: Final = struct.Struct("16s4x4s16x")  # `struct ifreq` with a `sockaddr_in`

ATTEMPTS: Final = (
    ("TORCHELASTIC_RUN_ID", "GROUP_RANK", "TORCHELASTIC_RESTART_COUNT"),
    ("SLURM_JOB_ID", "SLURM_CLUSTER_NAME", "SLURM_RESTART_COUNT"),
)
"""Variables of a job's name, of who counts its restarts, and of the count. Slurm sets no count before the first."""


class Attempt(NamedTuple):
    """One start of a job: its launcher may start it again after an error."""

    run: str = ""  # name of the job
    counter: str = ""  # who counts the restarts; each agent of `torchrun` counts its own
    number: int = 0  # restarts before this one

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Attempt:
        """Return the attempt that the launcher names; the first one of a job without a name if it names none."""
        for run, counter, number in ATTEMPTS:
            if run in environment:
                count = environment.get(number, "0")
                return cls(environment[run], environment.get(counter, ""), int(count) if count.isdecimal() else 0)
        return cls()

    def is_other_than(self, other: Attempt) -> bool:
        """Return whether this surely is another attempt of the same job: the same counter has another number."""
        return self[:2] == other[:2] and self.number != other.number

    def __str__(self) -> str:
        """Return its name in errors."""
        return f"attempt {self.number}"


def set_rank_environment(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set $RANK, $WORLD_SIZE, $LOCAL_RANK, $MASTER_ADDR and $MASTER_PORT from what ``mpiexec`` sets.

    $GLOO_SOCKET_IFNAME becomes the interface from which this host reaches $MASTER_ADDR, unless that is the loopback.
    Call it before ``init_process_group``. Variables that are set already stay.
    """
    for rank, size, local in LAUNCHERS:
        if "RANK" not in environment and rank in environment and size in environment:
            environment["RANK"], environment["WORLD_SIZE"] = environment[rank], environment[size]
            environment.setdefault("LOCAL_RANK", environment.get(local, "0"))
    if "RANK" in environment:
        environment.setdefault("MASTER_ADDR", "127.0.0.1")
        environment.setdefault("MASTER_PORT", PORT_DEFAULT)
        with contextlib.suppress(OSError, ValueError):  # no route: whoever connects says so
            interface = interface_of(address_towards(environment["MASTER_ADDR"]))
            if interface is not None:
                environment.setdefault(ENV_GLOO, interface)


def address_towards(host: str) -> str:
    """Return the IPv4 address from which this host reaches another; OSError or ValueError without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing: asks the routing table
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """Return the interface that has an IPv4 address as its first; None if none has it, or the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no address, or has just gone
                _, first = _IFREQ.unpack(fcntl.ioctl(probe, _SIOCGIFADDR, _IFREQ.pack(name.encode(), bytes(4))))
                if socket.inet_ntoa(first) == address and not address.startswith("127."):
                    return name
    return None
