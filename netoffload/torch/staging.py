"""Tensors as float32 vectors of the host, and back.

A float32 tensor on the CPU is summed in its own memory. float16 and bfloat16 are summed in float32 and rounded once, at
the end, which is better than rounding on every hop. A CUDA tensor goes through pinned memory. Both copies are
asynchronous, so the training thread never waits for them. **The CUDA path has not been run on a GPU.**
"""

from __future__ import annotations

from typing import Final

import torch

from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError

TYPES: Final = (torch.float32, torch.float16, torch.bfloat16)


class Staged:
    """One tensor under way.

    Args:
        tensor: a contiguous tensor of any shape; its device must not write to it until :meth:`put_back`.

    Raises:
        UsageError: its type cannot be summed.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        """Begin to copy, if there is something to copy."""
        if tensor.dtype not in TYPES:
            raise UsageError(f"gradients of {tensor.dtype} cannot be summed here: float32, float16 and bfloat16 can")
        self.tensor = tensor.detach()
        self._copied: torch.cuda.Event | None = None
        flat = self.tensor.reshape(-1)
        if tensor.is_cuda:
            self._host = torch.empty(flat.numel(), dtype=torch.float32, pin_memory=True)
            stream = torch.cuda.Stream(tensor.device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(tensor.device))
            with torch.cuda.stream(stream):
                self._host.copy_(flat.float(), non_blocking=True)
                self._copied = stream.record_event()
            flat.record_stream(stream)
        else:
            self._host = flat.float()  # the same memory if it is float32

    @property
    def devices(self) -> list[torch.device] | None:
        """Devices for the Future that :meth:`put_back` completes."""
        return [self.tensor.device] if self.tensor.is_cuda else None

    @property
    def octets(self) -> int:
        """Octets of the float32 vector."""
        return self._host.nbytes

    def values(self) -> Float32Array:
        """Return the vector, float32[n]; wait until it is copied."""
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
