"""Doors for torch: gradients and weights of torch programs go over ``netoffload.transport``, compressed on the way.

::

    model.register_comm_hook(CompressionState(bound=10), compress_hook)     (a) DistributedDataParallel
    dist.init_process_group("netoffload")                                   (b) a backend
    optimizer = DistributedOptimizer(optimizer, state)                      (c) your own training loop
    periodic = Periodic(model, optimizer, every=8)                          (d) weights every 8 steps
    state = fsdp.compress(model, bound=8)                                   (e) FSDP2

(a), (c), (d) and (e) are adapters over :mod:`netoffload.methods`, which knows no torch::

    bucket of gradients ─► Staged: float32 on the host ─► Calls.start ─► SelectiveReducer ─► mean ─► torch Future
    backward goes on                                      a thread: encode, send, receive, add

What a method remembers (residuals, scales, steps of random streams) belongs to the layers of the model, because DDP
builds its buckets anew after the first iteration. Each rank saves its state with the checkpoint. A run that loads it
goes on bit for bit.

Replicas stay bit-identical: every rank adds the same octets in the same order, and the ranks agree on each scale. If a
rank dies, all others raise an error that names it.

Files: ``options`` (how gradients travel), ``ranks`` (how ranks find each other), ``staging`` (tensors to float32 on the
host and back), ``layers`` (a model's parameters by index), ``state`` (what (a), (c), (d) and (e) share),
``first_gradient`` (a hook that never ran), ``hook``, ``optimizer``, ``periodic``, ``fsdp``; ``backend*`` (the backend).
"""

from netoffload.methods import Outer
from netoffload.torch.backend_group import BackendOptions
from netoffload.torch.hook import compress_hook
from netoffload.torch.optimizer import DistributedOptimizer, broadcast_optimizer_state, broadcast_parameters
from netoffload.torch.options import Options
from netoffload.torch.periodic import Periodic
from netoffload.torch.ranks import fresh_store
from netoffload.torch.state import CompressionState, Report
from netoffload.transport.rendezvous.launchers import set_rank_environment

__all__ = [
    "BackendOptions",
    "CompressionState",
    "DistributedOptimizer",
    "Options",
    "Outer",
    "Periodic",
    "Report",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "compress_hook",
    "fresh_store",
    "set_rank_environment",
]
