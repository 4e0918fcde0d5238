"""Calls under way as torch knows them: ``Work`` and ``Future`` over a :class:`~netoffload.transport.Request`.

``Work.wait`` waits for the request itself. A ``Future`` is made on request, and settled by a thread of a growing pool
or by the one that waits, whichever comes first. Its callbacks may wait for further calls, as PowerSGD's hook does. The
thread that carries calls out could not settle it, because it would wait for itself.
"""

import contextlib
import os
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch
from torch import Tensor
from torch.distributed import DistBackendError
from torch.distributed.distributed_c10d import Work
from torch.futures import Future

from netoffload.errors import NetOffloadError, PeerLostError, UsageError
from netoffload.transport import Request

MAX_SETTLING: Final = 64  # futures whose callbacks may run at the same time

_settling: ThreadPoolExecutor


def _begin_settling() -> None:
    global _settling
    _settling = ThreadPoolExecutor(MAX_SETTLING, thread_name_prefix="netoffload-future")


_begin_settling()
os.register_at_fork(after_in_child=_begin_settling)  # the pool counts on threads that a child does not have

Class = TypeVar("Class", bound=type)


def uncompiled(kind: Class) -> Class:
    """Keep ``torch.compile`` out of the methods that a class defines, and of all that they call.

    DDP's C++ code calls a process group's Python methods between the parts of a compiled model. The compiler would take
    such a call for the user's code, and refuse the group's attributes with an internal error.
    """
    for name, value in list(vars(kind).items()):
        if isinstance(value, types.FunctionType) and not _skip(value.__code__):
            setattr(kind, name, torch.compiler.disable(value))  # type: ignore[no-untyped-call]  # imports the compiler, which takes two seconds
    return kind


def _skip(code: types.CodeType) -> bool:
    """Let the compiler skip a function and what it calls; return False if this version of torch has no such mark."""
    try:
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )
    except ImportError:
        return False
    set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    return True


@uncompiled
class CallWork(Work):
    """A call under way, with its result; ``ranks`` are the group's, counted in the world.

    ``limit_s`` is how long a wait without a timeout takes at most, and ``give_up`` is called with the error if it is
    over: a message that comes later must not be taken for the next one. None: the call has a limit itself.
    """

    _ended: Future[Any]  # there with the future, which follows it
    _turn: threading.Lock  # taken for ever by the thread that settles it

    def __init__(
        self,
        request: Request,
        tensors: Sequence[Tensor],
        ranks: Sequence[int],
        limit_s: float | None = None,
        give_up: Callable[[BaseException], None] | None = None,
    ) -> None:
        super().__init__()
        self._request, self._tensors, self._ranks = request, list(tensors), ranks
        self._limit_s, self._give_up = limit_s, give_up
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
        return None if error is None else explain(error, self._ranks)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Sleep until the call has ended, at most ``timeout``; None or 0: the call's own limit."""
        is_own = timeout is None or timeout <= timedelta(0)
        limit_s = self._limit_s if timeout is None or is_own else timeout.total_seconds()
        if not self._request.join(limit_s):
            error = PeerLostError(f"the call is not over within the timeout of {limit_s:g} s")
            if is_own and self._give_up is not None:
                self._give_up(error)
            raise explain(error, self._ranks)
        if self._future is not None:
            self._settle()
            with contextlib.suppress(Exception):  # is raised below; another thread may be about to settle it
                self._future.wait()
        self._outcome()
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
            self._ended, self._turn = Future(), threading.Lock()
            # C++ sees an error only if a callback raises it.
            self._future = self._ended.then(lambda _: self._outcome())
            if self._request.test():
                self._settle()
            else:
                self._request.add_done_callback(lambda _: self._settle_later())
        return self._future

    def _outcome(self) -> list[Tensor]:
        """Return the tensors of a call that has ended, or raise its error."""
        if (error := self._request.error) is not None:
            raise explain(error, self._ranks) from error
        return self._tensors

    def _settle(self) -> None:
        if self._turn.acquire(blocking=False):
            self._ended.set_result(None)

    def _settle_later(self) -> None:
        def settle() -> None:
            self._request.join()
            self._settle()

        with contextlib.suppress(RuntimeError):  # the process ends, and no thread waits
            _settling.submit(settle)


@contextlib.contextmanager
def explained(ranks: Sequence[int]) -> Iterator[None]:
    """Turn errors of the body into those of torch."""
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
