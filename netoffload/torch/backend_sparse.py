"""The sum of sparse tensors: every rank gets the indices and values of all ranks, and adds them in their order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from netoffload.collectives import ring_allgather
from netoffload.collectives.schedule import Span
from netoffload.torch.backend_words import Words
from netoffload.transport import DataPlane


def sparse_sum(plane: DataPlane, tensor: Tensor) -> None:
    """Replace a sparse COO tensor on every rank by the sum over all ranks; collective."""
    own = tensor.detach().coalesce()
    exchange = plane.exchange
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(exchange.size)]
    counts[exchange.rank] += own._nnz()
    _share(plane, [[one] for one in counts])
    parts = []
    for rank, count in enumerate(int(one) for one in counts):
        indices, values = own.indices(), own.values()
        if rank != exchange.rank:
            indices, values = indices.new_empty(len(indices), count), values.new_empty(count, *values.shape[1:])
        parts.append([indices.contiguous(), values.contiguous()])
    _share(plane, parts)
    indices, values = (torch.cat(column, dim) for column, dim in zip(zip(*parts, strict=True), (1, 0), strict=True))
    total = torch.sparse_coo_tensor(indices, values, tensor.shape, check_invariants=False)
    with torch.no_grad():  # not detach(): a detached sparse tensor has indices of its own
        tensor.copy_(total.coalesce())


def _share(plane: DataPlane, parts: Sequence[Sequence[Tensor]]) -> None:
    """Fill the tensors ``parts[rank]`` on every rank with those of that rank; all ranks know their lengths."""
    words, width = Words([one for row in parts for one in row]), len(parts[0])
    rows = [words.spans[rank * width : (rank + 1) * width] for rank in range(len(parts))]
    ring_allgather(plane.exchange, words.load(), [Span(row[0].start, row[-1].stop) for row in rows], tagged=False)
    words.store()
