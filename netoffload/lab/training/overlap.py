"""Sums a gradient's buckets while backward goes on.

Backward writes the gradients of the last layers first. As soon as all layers of a bucket have their gradients, a thread
begins to sum the bucket. It sums one bucket after the other, in the same order on all ranks::

    backward    |-- last layers --|-- more --|-- first layers --|
    exchange                      |- bucket 0 -|- bucket 1 -----|- bucket 2 -|
                                  |<--------- hidden ---------->|<- waited ->|

With two workers the exact ring gives the same bits as without buckets. With more, a float's place in its bucket decides
which worker's value begins its sum, so sums differ by rounding. It also decides which worker's value a NIC rounds
first, so sums of ``inc+c`` differ by the error bound. A compressor that works on layers or single floats gives the same
result with buckets. One with a scale, a threshold or random numbers for a whole vector does not.
"""

from __future__ import annotations

from collections.abc import Callable

from netoffload.lab.training.replica import Replica
from netoffload.methods import Bucket, GradientReducer
from netoffload.transport import Request, wait_all
from netoffload.transport.calls import CallQueue


class Overlap:
    """The sums of one replica's gradients, iteration by iteration.

    Attributes:
        hidden_s: seconds of the latest iteration in which buckets travelled during backward.

    Args:
        replica: the replica whose gradient becomes the sum of all workers' gradients.
        reducer: has at least one bucket, and no other caller from this call on.
        clock: returns seconds, monotonic; called from two threads.
    """

    def __init__(self, replica: Replica, reducer: GradientReducer, clock: Callable[[], float]) -> None:
        """Watch the replica; the first iteration begins with its next backward."""
        self.hidden_s = 0.0
        self._replica, self._reducer, self._clock = replica, reducer, clock
        self._buckets = reducer.buckets
        self._bucket_of = {layer: bucket for bucket in self._buckets for layer in bucket}
        self._queue = CallQueue()
        self._begin()
        replica.watch_gradients(self._written)

    def finish(self) -> None:
        """After backward, begin the remaining buckets, also those of layers without a gradient, and wait for all.

        Raises:
            CollectiveError: summing a bucket failed.
        """
        computed_s = self._clock()
        while len(self._requests) < len(self._buckets):
            self._start()
        try:
            wait_all(self._requests)
        finally:
            self.hidden_s = sum(max(0.0, min(end, computed_s) - begin) for begin, end in self._travels)
            self._begin()

    def _begin(self) -> None:
        self._missing = {bucket: set(bucket) for bucket in self._buckets}
        self._requests: list[Request] = []
        self._travels: list[tuple[float, float]] = []

    def _written(self, layer: int) -> None:
        """Note that a layer has its gradient, and begin the buckets that are complete, in their order."""
        self._missing[self._bucket_of[layer]].discard(layer)
        while len(self._requests) < len(self._buckets) and not self._missing[self._buckets[len(self._requests)]]:
            self._start()

    def _start(self) -> None:
        bucket = self._buckets[len(self._requests)]
        self._requests.append(self._queue.start(lambda: self._reduce(bucket)))

    def _reduce(self, bucket: Bucket) -> None:
        begin_s = self._clock()
        self._reducer.reduce_part(self._replica.gradient, bucket)
        self._travels.append((begin_s, self._clock()))
