"""The one exception tree.

The cause decides the class: octets from a peer (:class:`WireError`), the caller's arguments (:class:`UsageError`), a
refusal of the system (:class:`SystemRefusedError` and its children), another rank (:class:`CollectiveError`). Each kind
of foreign error (``OSError``, ``NetlinkError``, MPI exceptions) becomes one of these classes in one package:
``devices``, ``netlink``, ``control``, ``transport``, ``netoffload_mpi``. The command line prints the message of a
:class:`NetOffloadError` as one line and exits with its ``exit_code``. Any other exception is a bug and keeps its
traceback.
"""

from typing import Final


class NetOffloadError(Exception):
    """Base of all errors that this project raises on purpose; the message is one line: what is wrong, what to do."""

    exit_code = 1


class UsageError(NetOffloadError, ValueError):
    """An impossible argument: an unknown codec, a bound outside 1..16, zero nodes."""

    exit_code = 2


class NotFiniteError(UsageError):
    """A value that cannot travel: NaN, an infinity, or one beyond a type's largest number; a run has diverged."""


EXTRAS: Final = {
    "cramjam": "bench",
    "matplotlib": "report",
    "mpi4py": "mpi",
    "scapy": "dissect",
    "sklearn": "train",
    "tensorboard": "tensorboard",
    "torch": "train",
    "torchft": "engines",
    "lightning": "engines",
    "accelerate": "engines",
    "transformers": "engines",
    "ray": "engines",
    "zfpy": "bench",
}
"""Optional packages by their import name, and the extra of this package that installs each."""


def missing_package(package: str) -> UsageError:
    """Return the error for a package of :data:`EXTRAS` that is not installed."""
    return UsageError(f"this needs {package}, which is not installed: pip install 'netoffload[{EXTRAS[package]}]'")


class WireError(NetOffloadError):
    """Octets from the network contradict their header."""


class CodecError(WireError):
    """No encoder can have made this compressed payload."""


class SystemRefusedError(NetOffloadError):
    """The kernel or the machine refused: no root, no TUN, a missing qdisc, a full table."""

    exit_code = 3


class DeviceError(SystemRefusedError):
    """A TAP or packet socket could not be opened or configured."""


class NetlinkRefusedError(SystemRefusedError):
    """The kernel refused a namespace, link, address, route or qdisc."""


class TestbedError(SystemRefusedError):
    """A testbed could not be built, found or measured."""

    __test__ = False  # the name starts with "Test", but this is no test class


class ControlError(NetOffloadError):
    """A control socket did not answer, or answered with an error."""


class CollectiveError(NetOffloadError, RuntimeError):
    """A collective could not be completed: ranks disagree, or a peer is gone. torch's own are RuntimeErrors."""


class PeerLostError(CollectiveError):
    """A peer closed its connection or was silent for longer than the time limit."""


class MalformedError(CollectiveError, WireError):
    """A rank, or somebody in its place, sent what no rank of this version sends."""


class ReplicaError(NetOffloadError):
    """Replicas that must be bit-identical are not."""


class RunError(NetOffloadError):
    """A launched program failed, hung, or did not leave its result."""
