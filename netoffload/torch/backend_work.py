"""Calls under way as torch knows them: ``Work`` and ``Future`` over a :class:`~netoffload.transport.Request`.

``Work.wait`` waits for the request itself. A ``Future`` is made on request, and a thread of a growing pool settles it.
Its callbacks may wait for further calls, as PowerSGD's hook does. The thread that carries calls out could not settle
it, because it would wait for itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final

from torch import Tensor
from torch.distributed import DistBackendError
from torch.distributed.distributed_c10d import Work
from torch.futures import Future

from netoffload.errors import NetOffloadError, UsageError
from netoffload.torch.backend_uncompiled import uncompiled
from netoffload.transport import Request

MAX_SETTLING: Final = 64
"""Futures whose callbacks may run at the same time."""

_settling = ThreadPoolExecutor(MAX_SETTLING, thread_name_prefix="netoffload-future")

Explain = Callable[[BaseException], BaseException]
"""Takes the error of a request, returns the error that torch's users get."""


@uncompiled
class CallWork(Work):
    """A call under way.

    Args:
        request: the call.
        tensors: its result.
        explain: its error in torch's terms.
    """

    def __init__(self, request: Request, tensors: Sequence[Tensor], explain: Explain) -> None:
        """Wait for nothing yet."""
        super().__init__()
        self._request = request
        self._tensors = list(tensors)
        self._explain = explain
        self._future: Future[list[Tensor]] | None = None

    def is_completed(self) -> bool:
        """Return whether the call has ended, well or with an error."""
        return self._request.test()

    def is_success(self) -> bool:
        """Return whether the call has ended well."""
        return self._request.test() and self._request.error is None

    def exception(self) -> BaseException | None:
        """Return what went wrong with the call; None: nothing."""
        error = self._request.error
        return None if error is None else self._explain(error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Sleep until the call has ended.

        Args:
            timeout: how long at most; None or 0: until it has ended.

        Raises:
            DistBackendError: the call failed, or did not end in time.
        """
        limit_s = timeout.total_seconds() if timeout is not None and timeout > timedelta(0) else None
        if not self._request.join(limit_s):
            raise DistBackendError(f"the call is not over within the timeout of {limit_s:g} s")
        if (error := self._request.error) is not None:
            raise self._explain(error) from error
        return True

    def synchronize(self) -> None:
        """Do the same as :meth:`wait`."""
        self.wait()

    def result(self) -> list[Tensor]:
        """Wait, and return the tensors with the result."""
        self.wait()
        return self._tensors

    def source_rank(self) -> int:
        """Return the rank, in the group, that a received message came from."""
        self.wait()
        arrival = self._request.arrival
        if arrival is None:
            raise DistBackendError("only a receive has a source rank")
        return arrival.source

    _source_rank = source_rank

    def get_future(self) -> Future[list[Tensor]]:
        """Return a future of the tensors."""
        if self._future is None:
            ended: Future[Any] = Future()
            # C++ sees an error only if a callback raises it.
            self._future = ended.then(lambda _: self.result())
            if self._request.test():
                ended.set_result(None)
            else:
                self._request.add_done_callback(lambda _: _settle(self._request, ended))
        return self._future


@contextlib.contextmanager
def explained(ranks: Sequence[int]) -> Iterator[None]:
    """Turn errors of the body into those of torch.

    Raises:
        DistBackendError: a rank is lost, ranks disagree, or the system refused a call.
    """
    try:
        yield
    except (NetOffloadError, OSError) as error:
        raise explain(error, ranks) from error


def explain(error: BaseException, ranks: Sequence[int]) -> BaseException:
    """Return torch's error for an error; UsageError and bugs stay as they are."""
    if isinstance(error, UsageError) or not isinstance(error, NetOffloadError | OSError):
        return error
    is_world = list(ranks) == list(range(len(ranks)))
    return DistBackendError(f"{error}" if is_world else f"{error} (ranks of the group {list(ranks)}, counted from 0)")


def _settle(request: Request, ended: Future[Any]) -> None:
    def settle() -> None:
        request.join()
        ended.set_result(None)

    with contextlib.suppress(RuntimeError):  # the process ends, and no thread waits
        _settling.submit(settle)
