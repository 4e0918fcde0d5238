"""A backend of ``torch.distributed`` for CPU tensors: ``init_process_group("netoffload")``.

A process group is a data plane (``netoffload.transport``); the ranks find each other through torch's store. Its
connections have no tag, so no NIC compresses them, and all values stay exact; between hosts, broadcasts and all-gathers
may be coded by ``exact`` (``DataPlane.move``). A group made with ``BackendOptions`` has a second plane, which
compresses float32. Long float32 sums and averages use the second plane.

Files: ``backend_group`` (the calls), ``backend_work`` (calls under way), ``backend_reductions`` (sums and what else
takes every rank's values), ``backend_words`` (tensors as vectors).
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from netoffload.config import Offload
from netoffload.errors import UsageError
from netoffload.torch.backend_group import NetOffloadGroup
from netoffload.torch.backend_work import explained
from netoffload.torch.options import BACKEND, Options, compare
from netoffload.torch.ranks import own_host
from netoffload.torch_plugin import NAME, register
from netoffload.transport import Calls, DataPlane, Settings, StoreRendezvous, set_up
from netoffload.transport.plane import LIMIT_S_MAX
from netoffload.transport.rounds.exchange import TIMEOUT_S_DEFAULT

BackendOptions = Options
"""The name of :class:`~netoffload.torch.options.Options` in ``pg_options``."""


def create(group: Any, options: Any) -> NetOffloadGroup:
    """Make a process group; torch calls this on all of its ranks.

    ``group`` has torch's store, rank, size, timeout and global ranks. ``options`` are the caller's ``pg_options``;
    None: those in the environment.
    """
    if options is not None and not isinstance(options, Options):
        raise UsageError(f"pg_options of the netoffload backend must be BackendOptions, not {type(options).__name__}")
    options = Options.of_environment() if options is None else options
    if options is not None:
        options.refuse_all_but(BACKEND, "the backend", "it sees no layers or steps; use CompressionState")
    rank, size, late_s = group.group_rank, group.group_size, min(group.timeout.total_seconds(), LIMIT_S_MAX)
    ranks = tuple(group.global_ranks_in_group) or tuple(range(size))
    timeout_s = min(TIMEOUT_S_DEFAULT if options is None else options.timeout_s, late_s)
    host = own_host(group.store)

    def rendezvous(name: str) -> StoreRendezvous:
        return StoreRendezvous(group.store, rank, size, late_s, f"{NAME}/{name}", (NAME, name, ranks))

    def plane(gather: StoreRendezvous, settings: Settings) -> Calls[DataPlane]:
        return Calls(set_up(gather, host, settings, DataPlane))

    with explained(ranks), contextlib.ExitStack() as stack:
        own = {} if options is None else {name: options.compared()[name] for name in ("scale", "min_octets")}
        words = {"compression": "none" if options is None else "options", **own}
        gather = rendezvous("exact")
        compare(gather, words)
        exact = plane(
            gather, dataclasses.replace((options or Options()).for_weights(), timeout_s=timeout_s, late_s=late_s)
        )
        stack.callback(exact.close)
        compressed = None
        if options is not None and options.settings().offload is not Offload.OFF:
            settings = dataclasses.replace(options.settings(), timeout_s=timeout_s, late_s=late_s)
            compressed = plane(rendezvous("compressed"), settings)
            stack.callback(compressed.close)
        stack.pop_all()
    return NetOffloadGroup(group.store, exact, compressed, options or Options(), ranks)


register()
