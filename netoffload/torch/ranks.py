"""How ranks of a torch program find each other: over a store that all of them reach.

=================  ================================================================================
started by         store, and where rank and size come from
=================  ================================================================================
any, if ``dist``   the process group's store, rank and size
is initialized
``torchrun``       $MASTER_ADDR and $MASTER_PORT; $RANK and $WORLD_SIZE
``mpiexec``        the same address; $PMI_RANK and $PMI_SIZE (MPICH), $OMPI_COMM_WORLD_* (Open MPI)
by hand, alone     none: one rank
=================  ================================================================================

Under ``mpiexec`` $MASTER_ADDR is 127.0.0.1 unless you set it to rank 0's host; ``netoffload run`` sets it.
"""

import os
import platform
import secrets
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]  # public, but not declared so
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
    rendezvous,
)

from netoffload.torch.options import compare
from netoffload.transport import Calls, DataPlane, Settings, StoreRendezvous, set_up
from netoffload.transport.rendezvous.agreement import own_address
from netoffload.transport.rendezvous.launchers import set_rank_environment
from netoffload.transport.rounds.driver import prepare
from netoffload.transport.rounds.exchange import LATE_S_DEFAULT

SET_UP_TIMEOUTS: Final = 2  # how many times `timeout_s` a gather of the set-up may take

_stores: dict[int, Store] = {}  # by the number of ranks that share it


def connect(
    group: dist.ProcessGroup | None, settings: Settings, options: Mapping[str, Any] = MappingProxyType({})
) -> Calls[DataPlane]:
    """Connect all ranks of a group; collective.

    Without a group they are those of the default group, or without one all that the launcher started. ``options`` must
    be the same on all ranks (:func:`~netoffload.torch.options.compare`).
    """
    prepare()  # before the other ranks wait for this one: it may compile for a minute
    if group is None and not dist.is_initialized():
        store, rank, size = _launched(settings.late_s)
        ranks = tuple(range(size))
    else:
        group = group if group is not None else dist.group.WORLD
        assert group is not None
        store, rank, size = group.get_group_store(), group.rank(), group.size()
        ranks = tuple(dist.get_process_group_ranks(group))
    gather = StoreRendezvous(store, rank, size, settings.late_s, _prefix(), ("torch", ranks))
    compare(gather, options)  # when this returns, all ranks have compiled
    gather.limit_s = SET_UP_TIMEOUTS * settings.timeout_s
    return Calls(set_up(gather, own_host(store), settings, DataPlane))


def fresh_store() -> tuple[Store, int, int]:
    """Return an empty store that all ranks of the launcher share, this rank, and the number of ranks; collective.

    ::

        store, rank, size = fresh_store()
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)

    ``torchrun`` keeps its store when it starts the ranks again. A backend that reads there what the attempt before
    left, as gloo does, connects with ranks that have ended.
    """
    store, rank, size = _launched(LATE_S_DEFAULT)
    gather = StoreRendezvous(store, rank, size, LATE_S_DEFAULT, f"{_prefix()}/fresh")
    (name, *_) = gather(secrets.token_hex(16))
    return PrefixStore(f"{_prefix()}/{name}", store), rank, size


def _prefix() -> str:
    """Return the prefix of keys: jobs that share a store have different ones."""
    return f"netoffload/{os.environ.get('TORCHELASTIC_RUN_ID', '')}"


def own_host(store: Store) -> str:
    """Return the address or name by which other ranks reach this host: its address towards the store's, or its name."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    name = platform.node()
    first = store.host if isinstance(store, TCPStore) else os.environ.get("MASTER_ADDR", name)
    address = own_address(lambda own: [own, first], name)
    return name if address.startswith("127.") else address


def _launched(limit_s: float) -> tuple[Store, int, int]:
    """Return store, rank and size of a program without a process group; the store is made once."""
    set_rank_environment()
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size not in _stores:
        if size == 1:
            _stores[size] = HashStore()
        else:
            _stores[size], _, _ = next(rendezvous("env://", rank, size, timeout=timedelta(seconds=limit_s)))
    return _stores[size], rank, size
