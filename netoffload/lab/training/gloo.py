"""A sum by ``torch.distributed``'s gloo, to time beside our collectives.

MPI connects the ranks and passes on the address of gloo's store. gloo takes the interface that $GLOO_SOCKET_IFNAME
names, else the one to whose address the host's name resolves.
"""

import contextlib
import datetime
from collections.abc import Callable, Iterator
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not declared so

from netoffload.compiled.arrays import Float32Array
from netoffload.transport.rendezvous.agreement import own_address
from netoffload_mpi import MPI

TIMEOUT: Final = datetime.timedelta(seconds=300)
"""Time limit of a call. A slow one, a worker-aggregator round of 98 MB at 100 Mb/s, takes 47 s."""


@contextlib.contextmanager
def gloo_reduction(comm: MPI.Intracomm) -> Iterator[Callable[[Float32Array], None]]:
    """Connect gloo between the ranks of ``comm``, and yield the function that sums a vector in place; collective."""
    torch.set_num_threads(1)
    address = own_address(comm.allgather, MPI.Get_processor_name())
    store = None
    if comm.rank == 0:
        store = TCPStore(address, 0, comm.size, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    host, port = comm.bcast((address, store.port) if store is not None else None)
    if store is None:
        store = TCPStore(host, port, comm.size, is_master=False, timeout=TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size, timeout=TIMEOUT)

    def sum_in_place(values: Float32Array) -> None:
        dist.all_reduce(torch.from_numpy(values))

    try:
        yield sum_in_place
    finally:
        dist.destroy_process_group()
