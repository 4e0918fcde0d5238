"""A backend of ``torch.distributed`` for CPU tensors: ``init_process_group("netoffload")``.

A process group is a data plane (``netoffload.transport``); the ranks find each other through torch's store. Its
connections have no tag, so no NIC compresses them, and all values stay exact. A group made with :class:`BackendOptions`
has a second plane, which compresses float32. Long float32 sums and averages use the second plane.

Files: ``backend_group`` (the calls), ``backend_work`` (calls under way), ``backend_reductions`` and ``backend_words``
(tensors as vectors).
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any, Final

from netoffload.config import Offload, parse_offload, parse_size_octets
from netoffload.errors import UsageError
from netoffload.torch.backend_group import NetOffloadGroup
from netoffload.torch.backend_work import explained
from netoffload.torch.ranks import own_host
from netoffload.torch_plugin import NAME, register
from netoffload.transport import Calls, DataPlane, Settings, StoreRendezvous, set_up
from netoffload.transport.agreement import asked_precision
from netoffload.transport.dataplane import TIMEOUT_S_DEFAULT

ENV_BACKEND: Final = "NETOFFLOAD_BACKEND"
"""Environment variable with the codec for groups without options: ``bounded:10`` or ``bounded:10:64KiB``."""

MIN_OCTETS: Final = 64 * 1024
"""Shorter vectors stay exact by default: a fast network carries them in the time of a few hops."""


@dataclass(frozen=True)
class BackendOptions:
    """How a group compresses ``all_reduce`` of float32 with SUM or AVG; its other calls stay exact.

    Attributes:
        codec: name of the codec; None: the NICs' codec, or without NICs the default of ``inline``.
        bound: k of the error bound 2**-k; give it with ``codec``.
        offload: who compresses: ``nic``, ``inline``, ``auto``, or ``off``.
        min_octets: shorter vectors stay exact.
    """

    codec: str | None = None
    bound: int | None = None
    offload: Offload | str = Offload.AUTO
    min_octets: int = MIN_OCTETS

    def __post_init__(self) -> None:
        """Refuse impossible options before a rank waits for the others.

        Raises:
            UsageError: codec, bound or offload is unknown, or only one of codec and bound is given.
        """
        asked_precision(self.codec, self.bound)
        parse_offload(self.offload)

    @classmethod
    def of_environment(cls) -> BackendOptions | None:
        """Return the options in ``$NETOFFLOAD_BACKEND``, None if it is not set.

        Raises:
            UsageError: the variable has another form.
        """
        text = os.environ.get(ENV_BACKEND)
        if not text:
            return None
        codec, _, rest = text.partition(":")
        bound, _, size = rest.partition(":")
        if not bound.isdecimal():
            raise UsageError(
                f"${ENV_BACKEND} is {text!r}: write codec:bound or codec:bound:size, as in bounded:10:64KiB"
            )
        return cls(codec, int(bound), min_octets=parse_size_octets(size) if size else MIN_OCTETS)


def create(options: Any, asked: Any) -> NetOffloadGroup:
    """Make a process group; torch calls this on all of its ranks.

    Args:
        options: torch's options, with store, rank, size, timeout and the global ranks.
        asked: a :class:`BackendOptions`; None: the options in the environment.

    Raises:
        UsageError: ``asked`` has another type, or impossible values.
        DistBackendError: a rank did not come within the time limit, or could not connect.
    """
    if asked is not None and not isinstance(asked, BackendOptions):
        raise UsageError(f"pg_options of the netoffload backend must be a BackendOptions, not {type(asked).__name__}")
    asked = BackendOptions.of_environment() if asked is None else asked
    rank, size, late_s = options.group_rank, options.group_size, options.timeout.total_seconds()
    ranks = tuple(options.global_ranks_in_group) or tuple(range(size))
    timeout_s = min(TIMEOUT_S_DEFAULT, late_s)
    host = own_host(options.store)

    def plane(name: str, settings: Settings) -> Calls[DataPlane]:
        rendezvous = StoreRendezvous(options.store, rank, size, late_s, f"{NAME}/{name}", (NAME, name, ranks))
        return Calls(set_up(rendezvous, host, settings, DataPlane))

    with explained(ranks), contextlib.ExitStack() as stack:
        exact = plane("exact", Settings(timeout_s=timeout_s, late_s=late_s, offload=Offload.OFF))
        stack.callback(exact.close)
        compressed = None
        if asked is not None and parse_offload(asked.offload) is not Offload.OFF:
            settings = Settings(asked.codec, asked.bound, timeout_s, late_s, offload=parse_offload(asked.offload))
            compressed = plane("compressed", settings)
            stack.callback(compressed.close)
        stack.pop_all()
    return NetOffloadGroup(options.store, exact, compressed, 0 if asked is None else asked.min_octets, ranks)


register()
