"""Calls of ``torch.distributed`` in words, as ranks announce them in their meetings.

Ranks whose words differ do not go on, and the error quotes the words of two of them. So the words name all that must be
the same on all ranks: call, operation, types, lengths and root. Lengths that may differ from rank to rank are left out;
the ranks of each pair compare them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable

import torch
from torch import Tensor


def lengths_of(tensors: Iterable[Tensor]) -> str:
    """Return types and lengths: ``float32[100], int8[3] (4 times)``."""
    return _joined(tuple([(one.dtype, one.numel()) for one in tensors]))


def types_of(tensors: Iterable[Tensor]) -> str:
    """Return the types alone: ``float32``."""
    return ", ".join(sorted({_named(tensor.dtype) for tensor in tensors}))


@functools.lru_cache(maxsize=256)
def _joined(tensors: tuple[tuple[torch.dtype, int], ...]) -> str:
    runs = [(key, len(list(run))) for key, run in itertools.groupby(tensors)]
    return ", ".join(
        f"{_named(dtype)}[{count}]" + ("" if times == 1 else f" ({times} times)") for (dtype, count), times in runs
    )


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
