"""A process group's messages: send, receive, and the barrier that names who did not come."""
# mypy: disable-error-code="override, assignment, misc"
# torch's stubs describe overloads, which C++ selects by type. Only the first form of each calls Python classes.

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]  # public, but not declared so

from netoffload.collectives.transfer import octets_of
from netoffload.errors import CollectiveError, PeerLostError
from netoffload.torch.backend_announcements import lengths_of
from netoffload.torch.backend_identity import NamedGroup
from netoffload.torch.backend_uncompiled import uncompiled
from netoffload.torch.backend_words import Words
from netoffload.torch.backend_work import CallWork, explain, explained
from netoffload.transport import Calls, DataPlane, Request

ARRIVED_TAG: Final = -1
"""Tag of the empty messages of :meth:`MessageGroup.monitored_barrier`; torch's tags are not negative."""


@uncompiled
class MessageGroup(NamedGroup):
    """The messages of a group.

    Args:
        store: the store that the ranks share.
        exact: the calls of the exact data plane.
        ranks: the group's ranks, counted in the world.
    """

    def __init__(self, store: Store, exact: Calls[DataPlane], ranks: Sequence[int]) -> None:
        """Take over the connections."""
        exchange = exact.plane.exchange
        super().__init__(exchange.rank, exchange.size, store)
        self._exact = exact
        self._ranks = tuple(ranks)

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> CallWork:
        """Send a tensor to a rank."""
        words = Words(tensors)
        request = self._exact.plane.exchange.watch.send(peer, tag, octets_of(words.load()), lengths_of(tensors))
        return CallWork(request, tensors, self._explain)

    def recv(self, tensors: list[Tensor], peer: int | None, tag: int) -> CallWork:
        """Receive a tensor from a rank; None: from any rank. Another tensor than was sent ends the group."""
        words, ended, expected = Words(tensors), Request(), lengths_of(tensors)

        def finish(request: Request) -> None:
            arrival, error = request.arrival, request.error
            if arrival is not None and arrival.words != expected:
                error = CollectiveError(
                    f"ranks disagree: rank {arrival.source} sends {arrival.words} with tag {arrival.tag}, "
                    f"rank {self.rank()} receives {expected}"
                )
            if error is None and arrival is not None:
                words.store()
                ended.complete(arrival)
                return
            ended.fail(error or CollectiveError("the receive was cancelled"))
            if error is not None and not isinstance(error, PeerLostError):
                self._exact.give_up(error)

        self._exact.plane.exchange.watch.receive(peer, tag, octets_of(words.values)).add_done_callback(finish)
        return CallWork(ended, tensors, self._explain)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> CallWork:
        """Receive a tensor from any rank."""
        return self.recv(tensors, None, tag)

    def monitored_barrier(self, timeout: timedelta, wait_all_ranks: bool = False) -> None:
        """Wait until all ranks have come; else end the group with an error that names who did not.

        Args:
            timeout: how long rank 0 waits for the others.
            wait_all_ranks: name all that did not come, not only the first.

        Raises:
            DistBackendError: a rank did not come; on all ranks.
        """
        watch, limit_s = self._exact.plane.exchange.watch, timeout.total_seconds()
        nothing, others = memoryview(b""), range(1, self.size())
        with explained(self._ranks):
            if self.rank() > 0:
                watch.send(0, ARRIVED_TAG, nothing).wait()
                # Rank 0 may come late itself, and then waits for the others as long again.
                if not watch.receive(0, ARRIVED_TAG, nothing).wait(2 * limit_s):
                    raise self._missed([0], limit_s)
                return
            coming = {rank: watch.receive(rank, ARRIVED_TAG, nothing) for rank in others}
            end_s = time.monotonic() + limit_s
            missing = [rank for rank in others if not coming[rank].wait(max(0.0, end_s - time.monotonic()))]
            if missing:
                raise self._missed(missing if wait_all_ranks else missing[:1], limit_s)
            for rank in others:
                watch.send(rank, ARRIVED_TAG, nothing).wait()

    def _missed(self, missing: Sequence[int], limit_s: float) -> CollectiveError:
        names = ", ".join(map(str, missing))
        error = PeerLostError(f"rank {names} did not come to monitored_barrier within the timeout of {limit_s:g} s")
        self._exact.plane.exchange.abort(error)
        return error

    def _explain(self, error: BaseException) -> BaseException:
        return explain(error, self._ranks)
