"""Tries cases on one communicator: ``_comp`` calls, blocking and non-blocking, compared with plain MPI or the model."""

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from mpi4py import MPI

from netoffload_mpi import CompComm
from netoffload_mpi.requests import CompRequest
from tests.mpi.verify.cases import EXACT, Case, Observed, Place, Prepared
from tests.mpi.verify.collectives import collectives
from tests.mpi.verify.messages import FINISHES, Exchange, comp_calls, exchanges, mpi_calls

IN_FLIGHT_CALLS: Final = 6
IN_FLIGHT_FLOATS: Final = 4_000_000
"""Most calls and most floats in the background. Then all are finished together, in each of ``FINISHES`` by turns."""


@dataclass
class Trial:
    """One rank's part in trying everything on one communicator with vectors of one length.

    ``plain`` is another communicator of the same ranks for mpi4py's own calls, so that these do not meet calls in the
    background. ``only`` has mpi4py's names of the calls to try; empty: all. ``tallies`` counts by label how many calls
    were carried out (``cases``), how many of them in the ``background``, and how many ``values`` were compared.
    """

    comm: CompComm
    plain: MPI.Intracomm
    at: Place
    only: Collection[str] = ()
    tallies: dict[str, Counter[str]] = field(default_factory=dict)
    mismatch: str | None = None
    _digest: Any = field(default_factory=hashlib.sha256)
    _pending: list[tuple[Case, Prepared, Observed, CompRequest]] = field(default_factory=list)
    _batches: int = 0

    def run(self) -> str | None:
        """Try everything; return the first mismatch of any rank, the same on all ranks of the communicator."""
        for case in collectives(self.at):
            if not self.only or case.call in self.only:
                self._try(case)
        self._finish_pending()
        for exchange in exchanges(self.at):
            if not self.only or any(f"{name}_comp" in exchange.label for name in self.only):
                self._try_exchange(exchange)
        told = self.plain.allgather((self.mismatch, self._digest.digest()))
        if len({digest for _, digest in told}) > 1 and not any(text for text, _ in told):
            return f"ranks hold different results of Allreduce_comp {self._where()}"
        return next((text for text, _ in told if text), None)

    def _try(self, case: Case) -> None:
        expected = self._expected(case)
        prepared = case.make(EXACT)
        getattr(self.comm, case.method)(*prepared.arguments, **case.options)
        self._compare(case.label or case.method, case.method, case.variant, prepared.observed, expected)
        if case.call == "Allreduce":
            for vector in prepared.observed:
                self._digest.update(vector.data)
        if case.background is not None:
            prepared = case.make(EXACT)
            request = getattr(self.comm, case.background)(*prepared.arguments, **case.options)
            self._pending.append((case, prepared, expected, request))
            floats = sum(vector.size for _, made, _, _ in self._pending for vector in made.observed)
            if len(self._pending) >= IN_FLIGHT_CALLS or floats > IN_FLIGHT_FLOATS:
                self._finish_pending()

    def _expected(self, case: Case) -> Observed:
        if case.model is not None and not self.at.exact:
            return case.model()
        prepared = case.make(self.at.rounding)
        getattr(self.plain, case.call)(*prepared.arguments)
        if case.divisor == 1:
            return prepared.observed
        return tuple(vector / np.float32(case.divisor) for vector in prepared.observed)

    def _finish_pending(self) -> None:
        if not self._pending:
            return
        finish = FINISHES[self._batches % len(FINISHES)]
        self._batches += 1
        finish([request for *_, request in self._pending])
        for case, prepared, expected, _ in self._pending:
            what = f"{case.background} ({finish.__name__})"
            self._compare(case.label or case.method, what, case.variant, prepared.observed, expected, background=True)
        self._pending.clear()

    def _try_exchange(self, exchange: Exchange) -> None:
        expected = exchange.run(mpi_calls(self.plain), self.at.rounding)
        got = exchange.run(comp_calls(self.comm), EXACT)
        self._compare(exchange.label, exchange.label, "", got, expected)

    def _compare(
        self, label: str, what: str, variant: str, got: Observed, expected: Observed, *, background: bool = False
    ) -> None:
        values = sum(one.size for one in got if isinstance(one, np.ndarray))
        is_first = self.at.rank == 0
        tally = self.tallies.setdefault(label, Counter())
        tally.update(cases=is_first, background=is_first and background, values=values)
        if self.mismatch is None and (difference := first_difference(got, expected)) is not None:
            named = f"{what}({variant})" if variant else what
            self.mismatch = f"{named} {self._where()}: on rank {self.at.rank} {difference}"

    def _where(self) -> str:
        mode = "exact" if self.at.exact else "with the codec"
        return f"of {self.at.count} floats on {self.at.size} ranks, {mode}"


def first_difference(got: Sequence[Any], expected: Sequence[Any]) -> str | None:
    """Say where results first differ from the expected ones, bit for bit; None: nowhere."""
    if len(got) != len(expected):
        return f"{len(got)} results came instead of {len(expected)}"
    for ours, theirs in zip(got, expected, strict=True):
        if not isinstance(ours, np.ndarray):
            if ours != theirs:
                return f"the status says source, tag, count {ours} instead of {theirs}"
            continue
        if ours.size != theirs.size:
            return f"{ours.size} values came instead of {theirs.size}"
        differ = np.flatnonzero(ours.view(np.uint32) != theirs.view(np.uint32))
        if differ.size:
            index = int(differ[0])
            many = f" ({differ.size} differ)" if differ.size > 1 else ""
            return f"value {index} of {ours.size} is {ours[index]!s} instead of {theirs[index]!s}{many}"
    return None
