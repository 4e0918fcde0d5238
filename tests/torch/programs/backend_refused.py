"""Ranks of which one cannot set up: ``backend_refused.py REFUSING SIZE``; all say why."""

import os
import sys
from typing import Any

import torch.distributed as dist

from netoffload.errors import UsageError
from netoffload.transport.plane import ENV_CHUNK
from tests.torch.programs.forked_group import error_of, join, print_ranks


def take_part(rank: int, size: int, port: int) -> Any:
    is_refusing = rank == int(sys.argv[1])
    if is_refusing:
        os.environ[ENV_CHUNK] = "1"
    # Rank 0 ends at once, and the store with it.
    return error_of(lambda: join(rank, size, port, 20), UsageError if is_refusing else dist.DistBackendError)


if __name__ == "__main__":
    print_ranks(int(sys.argv[2]), take_part)
