"""The one exception tree.

Who is to blame decides the class: what a peer sent (:class:`WireError`), what our caller asked for
(:class:`UsageError`), what the system refused (:class:`SystemRefusedError` and its children), what another rank did
(:class:`CollectiveError`). Foreign errors (``OSError``, ``NetlinkError``, MPI exceptions) become ours at one border
each: ``devices``, ``netlink``, ``control``, ``transport``, ``netoffload_mpi``. The command line prints the message of
a :class:`NetOffloadError` as one line and exits with its ``exit_code``; anything else is a bug and keeps its
traceback.
"""

from __future__ import annotations

from typing import Final


class NetOffloadError(Exception):
    """Base of everything this project raises on purpose; the message is one line and says what to do."""

    exit_code = 1


class UsageError(NetOffloadError, ValueError):
    """Our caller asked for something that cannot be: an unknown codec, a bound outside 1..16, zero nodes."""

    exit_code = 2


EXTRAS: Final = {
    "cramjam": "bench",
    "matplotlib": "report",
    "mpi4py": "mpi",
    "scapy": "dissect",
    "sklearn": "train",
    "tensorboard": "tensorboard",
    "torch": "train",
    "zfpy": "bench",
}
"""The packages that only some need, by the name of their import, and the extra of this package that brings each."""


def missing_package(package: str) -> UsageError:
    """Return what to say when a package of :data:`EXTRAS` is not there."""
    return UsageError(f"this needs {package}, which is not installed: pip install 'netoffload[{EXTRAS[package]}]'")


class WireError(NetOffloadError):
    """Octets from the network that are not what their header says."""


class CodecError(WireError):
    """A compressed payload that no encoder can have made."""


class SystemRefusedError(NetOffloadError):
    """The kernel or the machine refused: no root, no TUN, a missing qdisc, a full table."""

    exit_code = 3


class DeviceError(SystemRefusedError):
    """A TAP or packet socket could not be opened or configured."""


class NetlinkRefusedError(SystemRefusedError):
    """The kernel refused a namespace, link, address, route or qdisc."""


class TestbedError(SystemRefusedError):
    """A testbed could not be built, found or measured as asked for."""

    __test__ = False  # the name starts with "Test", but this is no test class


class ControlError(NetOffloadError):
    """A control socket did not answer, or answered with an error."""


class CollectiveError(NetOffloadError):
    """A collective could not be completed: ranks disagree, or a peer is gone."""


class PeerLostError(CollectiveError):
    """A peer closed its connection or was silent for longer than the time limit."""


class ReplicaError(NetOffloadError):
    """Replicas that must be bit-identical are not."""


class RunError(NetOffloadError):
    """A launched program failed, hung, or did not leave its result."""
