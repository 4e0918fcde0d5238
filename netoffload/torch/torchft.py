"""A process group for torchft's ``Manager``: replicas come and go, and their gradients travel compressed.

torchft's lighthouse decides which replicas are in the quorum. For each new quorum the manager calls ``configure`` with
a fresh store, and with this replica's rank and the number of replicas in it. The group then closes the connections of
the quorum before, and meets the others over the new store. A replica that dies is an error of the call under way within
a second. The manager skips that step, and asks for the next quorum.

torchft's DDP, ``LocalSGD`` and ``DiLoCo`` call the manager, so they need nothing else::

    manager = Manager(pg=ProcessGroupNetOffload(BackendOptions("packed", 10)), ...)

The error of an allreduce reaches the manager through its future, and ``wait`` says only that the call has ended:
torchft's DDP (0.2) takes the future behind ``wait``, and a replica that survives would end there. Other calls raise.

The extra ``engines`` brings torchft.
"""

from __future__ import annotations

import contextlib
import dataclasses
from datetime import timedelta
from typing import Any, Final

from torch import Tensor
from torch.distributed import DistBackendError, Store, Work  # type: ignore[attr-defined]  # not declared public
from torch.futures import Future
from torchft.process_group import ProcessGroupWrapper

from netoffload.torch.backend import BackendOptions, create
from netoffload.torch.backend_group import NetOffloadGroup

TIMEOUT_DEFAULT: Final = timedelta(seconds=60)


@dataclasses.dataclass(frozen=True)
class _Quorum:
    """What torch hands to a backend that it makes, for a group that torch does not know."""

    store: Store
    group_rank: int
    group_size: int
    timeout: timedelta
    global_ranks_in_group: tuple[int, ...] = ()


class _Ended(Work):
    """A call whose ``wait`` returns whether it ended well, and whose future has its error."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def wait(self, timeout: timedelta | None = None) -> bool:
        with contextlib.suppress(DistBackendError):
            return bool(self._work.wait(*([] if timeout is None else [timeout])))
        return False

    def get_future(self) -> Future[Any]:
        return self._work.get_future()


class ProcessGroupNetOffload(ProcessGroupWrapper):  # type: ignore[misc]  # torchft has no types
    """The replicas of one quorum after the other.

    Args:
        options: codec, bound and scale of long float32 sums; None: ``$NETOFFLOAD_BACKEND``, or every call is exact.
        timeout: how long a replica waits for the others of a quorum, and for a call that makes no progress.
    """

    def __init__(self, options: BackendOptions | None = None, timeout: timedelta = TIMEOUT_DEFAULT) -> None:
        """Connect with nobody yet: the manager says with whom."""
        super().__init__(timeout)
        self._options = options

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return a name that says which engine this group is for."""
        return "torchft-netoffload"

    def shutdown(self) -> None:
        """Close the connections."""
        self.abort(errored=False)

    def allreduce(self, tensors: list[Tensor], opts: object) -> Work:
        """Reduce tensors over all replicas: the one call of the manager, which takes its error from the future."""
        return _Ended(super().allreduce(tensors, opts))

    def _create_pg(self, store: Store, rank: int, world_size: int) -> NetOffloadGroup:
        return create(_Quorum(store, rank, world_size, self._timeout), self._options)
