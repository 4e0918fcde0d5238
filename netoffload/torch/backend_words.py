"""Tensors as the vectors that connections carry, and back.

Untagged connections deliver octets as they were sent. So tensors that are only moved travel as *words*: their octets,
of any type, filled up to whole float32. Tensors that are added become vectors of a type that rings add
(``transfer.EXACT_TYPES``). Half-precision floats are added as float32 and rounded once, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor

from netoffload.collectives.exchange import FLOAT_OCTETS, Vector
from netoffload.collectives.schedule import consecutive
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError

ADDED_AS: Final = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.bool: torch.int32,
    torch.uint8: torch.uint8,
    torch.int8: torch.int32,
    torch.int16: torch.int32,
    torch.int32: torch.int32,
    torch.int64: torch.int64,
}
"""The type in which each type is reduced. The low octets of a sum or a product of integers do not depend on the high
ones. A sum of booleans is a number of ranks, which is true unless it is 0."""


class Words:
    """Tensors as float32 words; each tensor begins at a new word.

    The words share memory with the tensors if these lie one after the other and are whole words. Else :meth:`load` and
    :meth:`store` copy.

    Args:
        tensors: dense tensors on the CPU, of any types.

    Raises:
        UsageError: a tensor is not on the CPU, or sparse.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Find the memory."""
        self._tensors = [checked(tensor).detach() for tensor in tensors]
        self.spans = consecutive([-(-tensor.nbytes // FLOAT_OCTETS) for tensor in self._tensors])
        """Where each tensor is in :attr:`values`."""
        shared = _shared(self._tensors)
        self._is_shared = shared is not None
        count = self.spans[-1].stop if self.spans else 0
        self.values: Float32Array = np.zeros(count, np.float32) if shared is None else shared

    def load(self) -> Float32Array:
        """Copy the tensors to the words, unless they share memory, and return the words."""
        if not self._is_shared:
            octets = self.values.view(np.uint8)
            for tensor, span in zip(self._tensors, self.spans, strict=True):
                start = span.start * FLOAT_OCTETS
                octets[start : start + tensor.nbytes] = _octets(tensor.contiguous())
        return self.values

    def store(self) -> None:
        """Copy the words to the tensors, unless they share memory."""
        if self._is_shared:
            return
        octets = torch.from_numpy(self.values.view(np.uint8))
        for tensor, span in zip(self._tensors, self.spans, strict=True):
            start = span.start * FLOAT_OCTETS
            tensor.copy_(octets[start : start + tensor.nbytes].clone().view(tensor.dtype).view(tensor.shape))


class Numbers:
    """Tensors of one type as one vector of numbers to reduce; a single tensor may share its memory with the vector.

    Args:
        tensors: dense tensors on the CPU.
        is_kept: changes of :attr:`values` must not change the tensors.

    Raises:
        UsageError: a tensor is not on the CPU, sparse, or of a type that cannot be added.
    """

    def __init__(self, tensors: Sequence[Tensor], *, is_kept: bool = False) -> None:
        """Find the memory, or copy."""
        self._tensors = [checked(tensor).detach() for tensor in tensors]
        self.dtype = tensors[0].dtype
        if self.dtype not in ADDED_AS or any(tensor.dtype is not self.dtype for tensor in tensors):
            names = ", ".join(sorted({str(tensor.dtype) for tensor in tensors}))
            raise UsageError(f"reductions take tensors of one type that can be added, not {names}")
        self.spans = consecutive([tensor.numel() for tensor in self._tensors])
        """Where each tensor is in :attr:`values`."""
        one = self._tensors[0]
        is_plain = len(tensors) == 1 and one.is_contiguous() and ADDED_AS[self.dtype] is self.dtype
        self._is_shared = is_plain and not is_kept
        flats = [tensor.reshape(-1) for tensor in self._tensors]
        flat = flats[0] if self._is_shared else torch.cat(flats).to(ADDED_AS[self.dtype])
        self.values: Vector = flat.numpy()

    def store(self) -> None:
        """Copy the numbers to the tensors, in their type, unless they share memory."""
        if not self._is_shared:
            for tensor, span in zip(self._tensors, self.spans, strict=True):
                self.store_part(tensor, span.start, span.stop)

    def store_part(self, into: Tensor, start: int, stop: int) -> None:
        """Copy the numbers ``start`` to ``stop - 1`` to one tensor."""
        into.detach().copy_(torch.from_numpy(self.values[start:stop]).view(into.shape))


def checked(tensor: Tensor) -> Tensor:
    """Return a tensor whose memory can be sent.

    Raises:
        UsageError: the tensor is not on the CPU, or not dense.
    """
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise UsageError(
            f"the netoffload backend takes dense CPU tensors, not {tensor.layout} on {tensor.device}: "
            "call .to_dense().cpu() first"
        )
    return tensor.resolve_conj().resolve_neg()


def _shared(tensors: Sequence[Tensor]) -> Float32Array | None:
    """Return the memory of all tensors as one vector; None if they do not lie one after the other in whole words."""
    if not tensors or any(not tensor.is_contiguous() or tensor.nbytes % FLOAT_OCTETS for tensor in tensors):
        return None
    first, storage = tensors[0], tensors[0].untyped_storage()
    place = first.data_ptr()
    if place % FLOAT_OCTETS:
        return None
    for tensor in tensors:
        if tensor.data_ptr() != place or tensor.untyped_storage().data_ptr() != storage.data_ptr():
            return None
        place += tensor.nbytes
    start = first.data_ptr() - storage.data_ptr()
    octets = torch.empty(0, dtype=torch.uint8).set_(storage, start, (place - first.data_ptr(),))  # type: ignore[call-overload]
    return cast("Float32Array", octets.numpy().view(np.float32))


def _octets(flat: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return cast("np.ndarray[Any, np.dtype[np.uint8]]", flat.reshape(-1).view(torch.uint8).numpy())
