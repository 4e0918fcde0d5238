"""Door (a): a communication hook for ``DistributedDataParallel``.

DDP compares the hook's annotations with its own types, so they stay objects here.
"""

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # public, but not declared so

from netoffload.torch.state import CompressionState


def compress_hook(state: CompressionState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Sum a bucket over all ranks and return its mean, as DDP expects.

    ``model.register_comm_hook(CompressionState(codec="packed", bound=10), compress_hook)``

    The bucket is on its way when this returns: backward goes on. An error of the transport ends ``backward()`` of all
    ranks with a RuntimeError that has its text.

    Args:
        state: of this rank; one per model.
        bucket: DDP's; its buffer becomes the mean.
    """
    return state.start(bucket.buffer(), bucket.parameters(), is_last=bucket.is_last())
