"""A process group for torchft's ``Manager``: replicas come and go, and their gradients travel compressed.

torchft's lighthouse decides which replicas are in the quorum. For each new quorum the manager calls ``configure`` with
a fresh store, and with this replica's rank and the number of replicas in it. The group then closes the connections of
the quorum before, and meets the others over the new store. A replica that dies is an error of the call under way within
a second. The manager skips that step, and asks for the next quorum.

torchft's DDP, ``LocalSGD`` and ``DiLoCo`` call the manager, so they need nothing else::

    manager = Manager(pg=ProcessGroupNetOffload(BackendOptions("packed", 10)), ...)

With error feedback, or a host-side compressor, the group remembers residuals (:class:`_RememberedSums`). They stay with
the replicas that live: one that joins begins with none.

The error of an allreduce reaches the manager through its future, and ``wait`` says only that the call has ended:
torchft's DDP (0.2) takes the future behind ``wait``, and a replica that survives would end there. Other calls raise.

The extra ``engines`` brings torchft.
"""

import contextlib
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.distributed import DistBackendError, ReduceOp, Store, Work  # type: ignore[attr-defined]  # not declared public
from torch.futures import Future
from torchft.process_group import ProcessGroupWrapper

from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Layout
from netoffload.config import Offload
from netoffload.methods import Member, Selection, SelectiveReducer
from netoffload.methods.scales import auto_rms
from netoffload.torch.backend_group import BackendOptions, NetOffloadGroup, create
from netoffload.torch.options import BACKEND
from netoffload.transport import DataPlane

TIMEOUT_DEFAULT: Final = timedelta(seconds=60)


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


REMEMBERED: Final = ("compressor", "error_feedback", "seed", "batch")
"""Options beyond those of the backend: the group remembers vectors by their places."""

ONE: Final = (0,)  # a vector of the manager's is a model of one layer to its reducer


class _RememberedSums:
    """Sums with residuals, over one quorum after the other.

    The manager's vectors have no names. A vector is known by its place in its step, by its length, and by the step's
    fragment. What all replicas of a quorum must agree on (scales, random streams) begins anew with each quorum. What a
    replica has not sent yet goes on: it is added to the vector of the same place.
    """

    def __init__(self, options: BackendOptions) -> None:
        self._options = options
        self._reducers: dict[tuple[int, ...], SelectiveReducer] = {}
        self._unsent: dict[tuple[int, ...], Float32Array] = {}
        self._place = self._quorum = 0
        self.fragment: Callable[[], int] = lambda: 0

    def begin_step(self) -> None:
        """Count places from 0."""
        self._place = 0

    def begin_quorum(self, number: int) -> None:
        """Keep the residuals, and forget the rest; the calls of the quorum before have ended."""
        for key, reducer in self._reducers.items():
            if left := reducer.take_unsent(ONE):
                self._unsent[key] = left[0]
        self._reducers = {}  # a call of the quorum before may still hold the old ones
        self._quorum = number
        self.begin_step()

    @property
    def name(self) -> str:
        """How the vectors are added, in words that all replicas must share."""
        return f"{self._options.spec().name}{' with residuals' * self._options.error_feedback}"

    def has_place(self, vector: Tensor) -> bool:
        """Whether a vector is summed here; the backend sums others."""
        return vector.dtype is torch.float32 and vector.nbytes >= self._options.min_octets

    def next_sum(self, length: int) -> Callable[[DataPlane, Float32Array], None]:
        """Return the function that sums the step's next vector over a quorum's connections, in place."""
        key, reducers = (self.fragment(), self._place, length), self._reducers
        self._place += 1

        def add(plane: DataPlane, values: Float32Array) -> None:
            if key not in reducers:
                reducers[key] = self._reducer(plane, length)
            if (left := self._unsent.pop(key, None)) is not None:
                np.add(values, left, out=values)
            try:
                reducers[key].reduce(values, ONE)
            except BaseException:
                if left is not None:
                    self._unsent[key] = left  # the next quorum sends it
                raise

        return add

    def _reducer(self, plane: DataPlane, length: int) -> SelectiveReducer:
        options, spec = self._options, self._options.spec()
        codec = plane.precision.codec if plane.precision else ""
        seed = options.seed + self._quorum  # no random stream is used twice
        member = Member(plane.exchange, plane.quantise, Layout((length,)), seed, options.error_feedback)
        return SelectiveReducer(spec, member, Selection(frozenset(), options.scale, auto_rms(spec, codec)))


class ProcessGroupNetOffload(ProcessGroupWrapper):  # type: ignore[misc]  # torchft has no types
    """The replicas of one quorum after the other.

    Args:
        options: those of a group of the backend, and ``compressor``, ``error_feedback``, ``seed`` and ``batch``; they
            hold for long float32 sums. None: ``$NETOFFLOAD_BACKEND``, or every call is exact.
        timeout: how long a replica waits for the others of a quorum, and for a call that makes no progress.
    """

    def __init__(self, options: BackendOptions | None = None, timeout: timedelta = TIMEOUT_DEFAULT) -> None:
        """Connect with nobody yet: the manager says with whom."""
        super().__init__(timeout)
        self._options, self._sums = options, None
        if options is not None:
            options.refuse_all_but((*BACKEND, *REMEMBERED), "torchft's group", "it sees vectors without names")
            if options.compressor is not None or options.error_feedback:
                self._sums = _RememberedSums(options)
                of_backend = {name: getattr(options, name) for name in BACKEND}
                if options.compressor is not None:  # payloads take the exact plane
                    of_backend["offload"] = Offload.OFF
                self._options = BackendOptions(**of_backend)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return a name that says which engine this group is for."""
        return "torchft-netoffload"

    def follow(self, manager: Any, fragments: int) -> None:
        """Tell the fragments of DiLoCo's model apart, which are exchanged in turn; each has its residuals."""
        if self._sums is not None:
            self._sums.fragment = lambda: manager.current_step() % fragments

    def errored(self) -> None:
        """Return no error, because calls return theirs; the manager asks once at the end of each step."""
        if self._sums is not None:
            self._sums.begin_step()

    def shutdown(self) -> None:
        """Close the connections."""
        self.abort(errored=False)

    def allreduce(self, tensors: list[Tensor], opts: Any) -> Work:
        """Reduce tensors over all replicas: the one call of the manager, which takes its error from the future."""
        sums = self._sums
        if sums is None or opts.reduceOp != ReduceOp.SUM or not sums.has_place(tensors[0]):
            return _Ended(super().allreduce(tensors, opts))
        return _Ended(self.parent.sum_by(tensors[0], sums.next_sum(tensors[0].numel()), sums.name))

    def _create_pg(self, store: Store, rank: int, world_size: int) -> NetOffloadGroup:
        if self._sums is not None:
            self._sums.begin_quorum(self._quorum_id or 0)
        # What torch hands to a backend that it makes, for a group that torch does not know.
        group = SimpleNamespace(
            store=store, group_rank=rank, group_size=world_size, timeout=self._timeout, global_ranks_in_group=()
        )
        return create(group, self._options)
