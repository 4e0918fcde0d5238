"""Tensors as float32 vectors of the host, and back.

A float32 tensor on the CPU is summed in its own memory. float16 and bfloat16 are summed in float32 and rounded once, at
the end; what travels exact has 16 bits (``collectives.halves``). A CUDA tensor goes through pinned memory. Both copies
are asynchronous, so the training thread never waits for them. **The CUDA path has not been run on a GPU.**

float64 stays float64. A sparse tensor travels as its indices and values, to all ranks, which add up by themselves.
"""

from collections.abc import Sequence
from typing import Final

import torch

from netoffload.collectives import Half
from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.errors import CollectiveError, UsageError

HALVES: Final = {torch.float16: Half.FLOAT16, torch.bfloat16: Half.BFLOAT16}

TYPES: Final = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class Staged:
    """One contiguous tensor under way; its device must not write to it until :meth:`put_back`."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()
        self._copied: torch.cuda.Event | None = None
        self.half = HALVES.get(tensor.dtype)  # the tensor's type, if it has 16 bits
        flat, summed_as = self.tensor.reshape(-1), added_as(tensor)
        if tensor.is_cuda:
            self._host = torch.empty(flat.numel(), dtype=summed_as, pin_memory=True)
            stream = torch.cuda.Stream(tensor.device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(tensor.device))
            with torch.cuda.stream(stream):
                self._host.copy_(flat.to(summed_as), non_blocking=True)
                self._copied = stream.record_event()
            flat.record_stream(stream)
        else:
            self._host = flat.to(summed_as)  # the same memory if it has this type

    @property
    def devices(self) -> list[torch.device] | None:
        """Devices for the Future that :meth:`put_back` completes."""
        return [self.tensor.device] if self.tensor.is_cuda else None

    @property
    def octets(self) -> int:
        """Octets of the vector."""
        return self._host.nbytes

    def values(self) -> Float32Array:
        """Return the vector, float32[n] (or float64[n], if the tensor is); wait until it is copied."""
        if self._copied is not None:
            self._copied.synchronize()
        values: Float32Array = self._host.numpy()
        return values

    def put_back(self) -> torch.Tensor:
        """Write the vector to the tensor, on the current stream, and return the tensor."""
        flat = self.tensor.reshape(-1)
        if flat.data_ptr() != self._host.data_ptr():
            flat.copy_(self._host, non_blocking=True)
        return self.tensor


class StagedSparse:
    """One sparse COO tensor under way, on the CPU."""

    devices: list[torch.device] | None = None

    def __init__(self, tensor: torch.Tensor, summed_as: torch.dtype | None = None) -> None:
        if tensor.device.type != "cpu" or tensor.layout is not torch.sparse_coo:
            raise UsageError(
                f"sparse gradients travel as COO tensors of the CPU, not as {tensor.layout} of {tensor.device}"
            )
        self._dtype = tensor.dtype
        self._tensor = tensor.detach().to(summed_as or added_as(tensor)).coalesce()

    @property
    def octets(self) -> int:
        """Octets of the payload."""
        return self._tensor.indices().nbytes + self._tensor.values().nbytes

    def payload(self) -> Uint8Array:
        """Return indices and values."""
        parts = self._tensor.indices(), self._tensor.values()
        return torch.cat([part.contiguous().reshape(-1).view(torch.uint8) for part in parts]).numpy()

    def add_up(self, payloads: Sequence[Uint8Array]) -> None:
        """Become the sum of all ranks' tensors.

        Two at a time, so that no sum depends on the order in which torch adds values of the same indices.
        """
        total = self._of(payloads[0])
        for payload in payloads[1:]:
            total = (total + self._of(payload)).coalesce()
        self._tensor = total

    def average(self, payloads: Sequence[Uint8Array]) -> None:
        """Become the mean of all ranks' tensors."""
        self.add_up(payloads)
        self._tensor = self._tensor / len(payloads)

    def put_back(self) -> torch.Tensor:
        """Return the sum or the mean, in the type of the tensor."""
        return self._tensor.to(self._dtype)

    def _of(self, payload: Uint8Array) -> torch.Tensor:
        """Return a rank's tensor, which has this one's shape."""
        like, octets = self._tensor, torch.from_numpy(payload)
        dense = like.shape[like.sparse_dim() :]
        index_octets = like.sparse_dim() * torch.int64.itemsize
        count, rest = divmod(len(octets), index_octets + dense.numel() * like.dtype.itemsize)
        if rest:
            raise CollectiveError(
                f"a rank sent {len(octets)} octets for a sparse gradient of shape {tuple(like.shape)}"
            )
        cut = count * index_octets
        indices = _values_of(octets[:cut], torch.int64).view(like.sparse_dim(), count)
        values = _values_of(octets[cut:], like.dtype).view(count, *dense)
        return torch.sparse_coo_tensor(indices, values, like.shape, check_invariants=True, is_coalesced=True)


def _values_of(octets: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # A copy, which is aligned, and has a stride of 1 even if it is empty: else it cannot be viewed as another type.
    return torch.empty(len(octets), dtype=torch.uint8).copy_(octets).view(dtype)


def lie_together(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether the memory of contiguous tensors is one, in which they lie one after the other."""
    address, storage = tensors[0].data_ptr(), tensors[0].untyped_storage().data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != address or tensor.untyped_storage().data_ptr() != storage:
            return False
        address += tensor.nbytes
    return True


def added_as(tensor: torch.Tensor) -> torch.dtype:
    """Return the type in which a tensor's values are added; UsageError if they cannot be."""
    if tensor.dtype not in TYPES:
        names = ", ".join(str(one).removeprefix("torch.") for one in TYPES)
        raise UsageError(f"values of {tensor.dtype} cannot be summed here: {names} can")
    return torch.float64 if tensor.dtype is torch.float64 else torch.float32
