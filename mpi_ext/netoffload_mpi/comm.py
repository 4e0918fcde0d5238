"""CompComm: an mpi4py communicator whose float32 data can pass through compressing NICs."""
# ruff: noqa: N802 - MPI names its methods so, and these stand beside mpi4py's

import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, SupportsIndex

from mpi4py import MPI

from netoffload.collectives.transfer import octets_of
from netoffload.errors import UsageError
from netoffload.transport.info import CommInfo
from netoffload.transport.messages.requests import Arrival, Request, wait_all
from netoffload_mpi.buffers import BufferTypeError, float_vector
from netoffload_mpi.catalogue import Catalogue
from netoffload_mpi.requests import NOBODY, CompRequest, describe


class CompComm(Catalogue):
    """A communicator with a ``_comp`` variant of MPI's calls.

    It shares the handle of the communicator that it is made from; calls without the suffix are mpi4py's. ``Dup``,
    ``Clone``, ``Split``, ``Create`` and similar calls keep the settings. The first call of each communicator connects,
    and is collective. Communicators of the same ranks share the connections that are not for collectives. Only one
    thread may call a communicator's collectives at a time.

    All calls take contiguous float32, by any specification that mpi4py takes (``buffers``), and all raise

    - ``BufferTypeError`` (a ``TypeError``) for anything else, before an octet moves; ``UsageError`` for impossible
      lengths, counts or roots. In a collective the other ranks hear of it, unless all ranks refuse their arguments;
    - ``CollectiveError`` on all ranks if ranks disagree on a collective, its counts, operation or root;
    - ``PeerLostError`` on all ranks if a rank is lost or stuck (``transport.rounds.exchange``).

    After the last two the connections are closed; ``close()`` on every rank lets the next call connect again. Two
    errors of point-to-point calls concern only this rank, and close nothing: ``CollectiveError`` for a message longer
    than its receive buffer (the message is dropped), and ``PeerLostError`` for a message to or from ranks that have
    closed.

    Args:
        comm: the communicator to extend; default COMM_NULL, as in mpi4py.
        codec: codec that rounds; None: the codec of the NIC at ``$NETOFFLOAD_CONTROL``, else ``inline``'s default.
        bound_k: error bound 2**-bound_k; give it with ``codec``.
        timeout_s: silence of a process, host, link or NIC after which its rank is lost.
        late_s: how long a living rank may keep the others waiting before it comes to a call.
        chunk_octets: octets that are added and forwarded at a time; None: ``$NETOFFLOAD_CHUNK``, else from the rate and
            round-trip time of the path.
        require: raise ``CollectiveError`` after a call if a tagged connection was not compressed, and end the
            connections, so that every rank hears of it; also ``NETOFFLOAD_REQUIRE=1``.
        per_call: ask the NIC after every call, so that ``last_info`` has the NIC's part; ``require`` implies it.
        offload: who compresses: ``nic``, ``inline`` (each rank in its own process), ``auto`` (the NICs if every rank
            has one with the same codec, else inline) or ``off``; None: ``$NETOFFLOAD_OFFLOAD``, else ``auto``. The
            default codec of ``inline`` is ``packed`` with bound 10. With ``nic`` and without NICs all values arrive
            exact, and rank 0 says so.
    """

    def Send_comp(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send to ``dest``; return when ``buf`` may be used again."""
        going, octets = self._post_send(buf, dest, tag)
        self._finish([going], octets)

    def Recv_comp(
        self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> None:
        """Receive into ``buf``, which may be longer than the message; ``status`` describes the message."""
        self._finish([self._post_receive(buf, source, tag)], 0, status)

    def Isend_comp(self, buf: Any, dest: int, tag: int = 0) -> CompRequest:
        """Start :meth:`Send_comp`."""
        return CompRequest(self._post_send(buf, dest, tag)[0])

    def Irecv_comp(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> CompRequest:
        """Start :meth:`Recv_comp`."""
        return CompRequest(self._post_receive(buf, source, tag))

    def Sendrecv_comp(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        """Send to one rank and receive from one, at the same time."""
        self._check_peer(dest, sendtag, wildcards=False)  # first, or an error would leave a posted receive behind
        if dest != MPI.PROC_NULL:
            float_vector(sendbuf, writable=False)
        coming = self._post_receive(recvbuf, source, recvtag)
        going, octets = self._post_send(sendbuf, dest, sendtag)
        self._finish([coming, going], octets, status)

    def Probe_comp(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> bool:
        """Sleep until ``Recv_comp`` with the same arguments would get a message; ``status`` describes the message."""
        return self._probe(source, tag, status, wait=True)

    def Iprobe_comp(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> bool:
        """Return whether ``Recv_comp`` with the same arguments would get a message; ``status`` describes it."""
        return self._probe(source, tag, status, wait=False)

    def _post_send(self, buf: Any, dest: int, tag: int) -> tuple[Request, int]:
        """Return the request, and how many octets go to a socket: none to this rank itself or to ``PROC_NULL``."""
        self._check_peer(dest, tag, wildcards=False)
        if dest == MPI.PROC_NULL:
            return Request.done(), 0
        data = octets_of(float_vector(buf, writable=False))
        return self.exchange().watch.send(dest, tag, data), 0 if dest == self.Get_rank() else len(data)

    def _post_receive(self, buf: Any, source: int, tag: int) -> Request:
        self._check_peer(source, tag, wildcards=True)
        if source == MPI.PROC_NULL:
            return Request.done(NOBODY)
        into = octets_of(float_vector(buf, writable=True))
        return self.exchange().watch.receive(*_or_any(source, tag), into)

    def _probe(self, source: int, tag: int, status: MPI.Status | None, *, wait: bool) -> bool:
        self._check_peer(source, tag, wildcards=True)
        found: Arrival | None = NOBODY
        if source != MPI.PROC_NULL:
            found = self.exchange().watch.probe(*_or_any(source, tag), wait=wait)
        if found is not None:
            describe(found, status)
        return found is not None

    def _finish(self, requests: Sequence[Request], octets: int, status: MPI.Status | None = None) -> None:
        """Wait for the requests of one call, write the first one's status, and account for the call."""
        start_s = time.perf_counter()
        wait_all(requests)
        describe(requests[0].arrival or NOBODY, status)
        seconds = time.perf_counter() - start_s
        payload_octets = octets - sum(request.outcome.saved_octets for request in requests)
        calls = self.calls()
        calls.account(
            CommInfo(1, octets, seconds, wire_s=seconds, payload_octets=payload_octets, offload=calls.plane.offload)
        )

    def _check_peer(self, peer: int, tag: int, *, wildcards: bool) -> None:
        for name, value in (("rank", peer), ("tag", tag)):
            if not isinstance(value, SupportsIndex):
                raise UsageError(f"{name} {value!r} is not a whole number")
        named = (MPI.PROC_NULL, MPI.ANY_SOURCE) if wildcards else (MPI.PROC_NULL,)
        if not (0 <= peer < self.Get_size() or peer in named):
            raise UsageError(f"rank {peer} does not exist: there are {self.Get_size()}, counted from 0")
        if not (0 <= tag < 2**31 or (wildcards and tag == MPI.ANY_TAG)):
            raise UsageError(f"tag {tag} is outside 0..{2**31 - 1}")


def _or_any(source: int, tag: int) -> tuple[int | None, int | None]:
    return None if source == MPI.ANY_SOURCE else source, None if tag == MPI.ANY_TAG else tag


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise BufferTypeError(
            f"{name.lower()} would pickle Python objects, and NICs compress float32 only: use {name} with a float32 "
            f"buffer, or mpi4py's own {name.lower().removesuffix('_comp')}"
        )

    refuse.__doc__ = f"Raise BufferTypeError: objects cannot be compressed; use :meth:`{name}`."
    return refuse


for _name in [name for name in dir(CompComm) if name.endswith("_comp") and name[0].isupper()]:
    setattr(CompComm, _name.lower(), _refuse(_name))
