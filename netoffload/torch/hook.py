"""Door (a): a communication hook for ``DistributedDataParallel``.

DDP compares the hook's annotations with its own types. So this module does not turn annotations into strings.
"""

from typing import Any

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # public, but not declared so
from torch.nn.parallel import DistributedDataParallel

from netoffload.torch.state import CompressionState


def compress_hook(state: CompressionState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Begin to average a bucket over all ranks, and return a Future of the mean, as DDP expects.

    ``model.register_comm_hook(CompressionState(codec="packed", bound=10), compress_hook)``

    The bucket is under way when this returns, so backward goes on; its buffer becomes the mean. An error of the
    transport ends ``backward()`` on all ranks with a RuntimeError that has the error's text.
    """
    return state.start(bucket.buffer(), bucket.parameters(), is_last=bucket.is_last())


def compress(model: DistributedDataParallel, **options: Any) -> CompressionState:
    """Register the hook on a model that an engine has wrapped, and return its state.

    The state has the model's group and the names of its parameters. ``options`` are fields of
    :class:`~netoffload.torch.options.Options`.
    """
    named = model.module.named_parameters()
    state = CompressionState(model.process_group, named_parameters=named, **options)
    model.register_comm_hook(state, compress_hook)
    return state
