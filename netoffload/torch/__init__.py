"""Doors for torch: gradients and weights of torch's programs over ``netoffload.transport``, compressed on the way.

::

    model.register_comm_hook(CompressionState(bound=10), compress_hook)     (a) DistributedDataParallel
    dist.init_process_group("netoffload")                                   (b) a backend
    optimizer = DistributedOptimizer(optimizer, state)                      (c) a loop of your own
    periodic = Periodic(model, optimizer, every=8)                          (d) weights now and then

(a), (c) and (d) are adapters over :mod:`netoffload.methods`, which knows no torch::

    bucket of gradients ─► Staged: float32 on the host ─► Calls.start ─► SelectiveReducer ─► mean ─► torch Future
    backward goes on                                      a thread: encode, send, receive, add

What a method remembers (residuals, scales, steps of random streams) belongs to the layers of the model, because DDP
builds its buckets anew after the first iteration. A state is saved with a checkpoint, one per rank. A run that takes it
over goes on bit for bit.

Replicas stay bit-identical: every rank adds the same octets in the same order, and makes its scales of sums that all
have.

Ranks find each other over the store of the process group, or over that which the launcher's environment names
(``ranks``). A rank that dies is an error on all others that names it.

Files: ``options`` (what a state is asked for), ``ranks`` (how ranks find each other), ``staging`` (tensors to float32
on the host and back), ``layers`` (a model's parameters by index), ``state`` (what all doors share), ``hook``,
``optimizer``, ``periodic``; ``backend*`` is the backend.
"""

from netoffload.methods import Outer
from netoffload.torch.backend import BackendOptions
from netoffload.torch.hook import compress_hook
from netoffload.torch.optimizer import DistributedOptimizer, broadcast_parameters
from netoffload.torch.options import Options
from netoffload.torch.periodic import Periodic
from netoffload.torch.state import CompressionState, Report
from netoffload.transport.launchers import set_rank_environment

__all__ = [
    "BackendOptions",
    "CompressionState",
    "DistributedOptimizer",
    "Options",
    "Outer",
    "Periodic",
    "Report",
    "broadcast_parameters",
    "compress_hook",
    "set_rank_environment",
]
