"""Tensors as the vectors that connections carry, and back.

Untagged connections deliver octets as they were sent. So tensors that are only moved travel as *words*: their octets,
of any type, filled up to whole float32. Tensors that are added become vectors of a type that rings add
(``transfer.EXACT_TYPES``), or 16-bit floats as ``collectives.halves`` takes them.

Ranks announce their calls in words as well, the plain ones: types and lengths. Ranks whose words differ do not go on,
and the error quotes two of them. Lengths that may differ from rank to rank are left out; the ranks of each pair compare
them.

Memory is borrowed by its address. ``Tensor.numpy`` would make the storage unresizable for good, and FSDP1 and torch's
PowerSGD hook resize theirs.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from netoffload.collectives import Half
from netoffload.collectives.announcement import in_words
from netoffload.collectives.exchange import FLOAT_OCTETS, Vector
from netoffload.collectives.schedule import Span, consecutive
from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.errors import UsageError
from netoffload.torch.staging import HALVES, lie_together

ADDED_AS: Final = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.float16: torch.float16,
    torch.bfloat16: torch.bfloat16,
    torch.bool: torch.int32,
    torch.uint8: torch.uint8,
    torch.int8: torch.int32,
    torch.int16: torch.int32,
    torch.int32: torch.int32,
    torch.int64: torch.int64,
}
"""The type in which each type is reduced. The low octets of a sum or a product of integers do not depend on the high
ones. A sum of booleans is a number of ranks, which is true unless it is 0. A complex number is two real ones."""

_NUMPY_TYPES: Final = {
    dtype: np.dtype(np.uint16) if dtype in HALVES else torch.empty(0, dtype=dtype).numpy().dtype
    for dtype in set(ADDED_AS.values())
}


class Words:
    """Tensors as float32 words; each tensor begins at a new word.

    The words share memory with the tensors, which may be of any types, if these lie one after the other and are whole
    words. Else :meth:`load` and :meth:`store` copy.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = [checked(tensor).detach() for tensor in tensors]
        self.spans = consecutive([-(-tensor.nbytes // FLOAT_OCTETS) for tensor in self._tensors])
        """Where each tensor is in :attr:`values`."""
        shared = _shared(self._tensors)
        self._is_shared = shared is not None
        count = self.spans[-1].stop if self.spans else 0
        self.values: Float32Array = np.zeros(count, np.float32) if shared is None else shared

    @property
    def octets(self) -> Uint8Array:
        """The memory of :attr:`values`."""
        return self.values.view(np.uint8)

    @property
    def octet_spans(self) -> list[Span]:
        """Where each tensor is in :attr:`octets`, without what fills up its last word."""
        starts = [span.start * FLOAT_OCTETS for span in self.spans]
        return [Span(start, start + one.nbytes) for start, one in zip(starts, self._tensors, strict=True)]

    def rows(self, width: int) -> list[Span]:
        """Return where in :attr:`values` each ``width`` tensors are together: those of a rank."""
        rows = [self.spans[first : first + width] for first in range(0, len(self.spans), width or 1)]
        return [Span(row[0].start, row[-1].stop) for row in rows]

    @property
    def own_octets(self) -> Uint8Array:
        """The octets of the only tensor."""
        return self.octets[: self._tensors[0].nbytes]

    def load(self) -> Float32Array:
        """Copy the tensors to the words, unless they share memory, and return the words."""
        if not self._is_shared:
            for tensor, span in zip(self._tensors, self.octet_spans, strict=True):
                self.octets[span.start : span.stop] = octets_of_tensor(_resolved(tensor).contiguous())
        return self.values

    def store(self) -> None:
        """Copy the words to the tensors, unless they share memory."""
        if self._is_shared:
            return
        octets = torch.from_numpy(self.octets)
        for tensor, span in zip(self._tensors, self.octet_spans, strict=True):
            tensor.copy_(octets[span.start : span.stop].clone().view(tensor.dtype).view(tensor.shape))


class Numbers:
    """Tensors of one type as one vector of numbers to reduce; a single tensor may share its memory with the vector.

    With ``is_kept`` it does not, so that changes of the vector leave the tensor alone. With ``is_averaged`` octets are
    added in a type in which their sums do not overflow.
    """

    def __init__(self, tensors: Sequence[Tensor], *, is_kept: bool = False, is_averaged: bool = False) -> None:
        one = checked(tensors[0])
        self.dtype = one.dtype  # type of the tensors; of complex ones, that of their parts
        self._is_shared = len(tensors) == 1 and not is_kept and _is_plain(one)
        if self._is_shared and not (is_averaged and self.dtype is torch.uint8):  # a fast way for short calls
            self._tensors = [one]
            self.values: Vector = octets_of_tensor(one).view(_NUMPY_TYPES[self.dtype])
            return
        self._is_shared = False
        if any(tensor.dtype is not self.dtype for tensor in tensors):
            names = ", ".join(sorted({str(tensor.dtype) for tensor in tensors}))
            raise UsageError(f"reductions take tensors of one type, not {names}")
        self._tensors = [checked(tensor).detach() for tensor in tensors]
        resolved = map(_resolved, self._tensors)
        reals = [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in resolved]
        self.dtype = reals[0].dtype
        if self.dtype not in ADDED_AS:
            raise UsageError(f"tensors of {self.dtype} cannot be added: convert them first")
        added_as = torch.int32 if is_averaged and self.dtype is torch.uint8 else ADDED_AS[self.dtype]
        flat = torch.cat([real.reshape(-1) for real in reals]).to(added_as)
        self.values = octets_of_tensor(flat).view(_NUMPY_TYPES[added_as])

    @property
    def half(self) -> Half | None:
        """The type of :attr:`values`, if they are 16-bit floats."""
        return HALVES.get(self.dtype)

    @functools.cached_property
    def spans(self) -> tuple[Span, ...]:
        """Where each tensor is in :attr:`values`."""
        return consecutive([tensor.numel() * (2 if tensor.is_complex() else 1) for tensor in self._tensors])

    def store(self) -> None:
        """Copy the numbers to the tensors, in their type, unless they share memory."""
        if not self._is_shared:
            for tensor, span in zip(self._tensors, self.spans, strict=True):
                self.store_part(tensor, span.start, span.stop)

    def store_part(self, into: Tensor, start: int, stop: int) -> None:
        """Copy the numbers ``start`` to ``stop - 1`` to one tensor."""
        part = torch.from_numpy(self.values[start:stop])
        if self.half is not None:
            part = part.view(self.dtype)
        if into.is_complex():
            part = torch.view_as_complex(part.view(-1, 2))
        into.detach().copy_(part.view(into.shape))


class _Memory:
    """A tensor's memory in the form that NumPy takes; the array that NumPy makes of it keeps the tensor."""

    def __init__(self, tensor: Tensor, len_octets: int) -> None:
        self._tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (len_octets,),
            "data": (tensor.data_ptr(), False),
        }


def octets_of_tensor(tensor: Tensor, len_octets: int | None = None) -> Uint8Array:
    """Return the memory of a contiguous tensor; its storage stays resizable, but must not be resized meanwhile.

    ``len_octets`` are counted from its beginning, perhaps beyond its end; None: its own.
    """
    len_octets = tensor.nbytes if len_octets is None else len_octets
    return np.asarray(_Memory(tensor, len_octets)) if len_octets else np.empty(0, np.uint8)


def checked(tensor: Tensor) -> Tensor:
    """Return the tensor if it is dense and on the CPU; else raise UsageError."""
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        raise UsageError(
            f"the netoffload backend takes dense CPU tensors, not {tensor.layout} on {tensor.device}: "
            "call .to_dense().cpu() first"
        )
    return tensor


def _shared(tensors: Sequence[Tensor]) -> Float32Array | None:
    """Return the memory of all tensors as one vector; None if they do not lie one after the other in whole words."""
    if not tensors or not all(map(_is_whole, tensors)):
        return None
    if tensors[0].data_ptr() % FLOAT_OCTETS or not lie_together(tensors):
        return None
    return octets_of_tensor(tensors[0], sum(tensor.nbytes for tensor in tensors)).view(np.float32)


def _is_whole(tensor: Tensor) -> bool:
    """Return whether a tensor's memory holds its values, one after the other, in whole words."""
    return tensor.is_contiguous() and tensor.nbytes % FLOAT_OCTETS == 0 and not (tensor.is_conj() or tensor.is_neg())


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor's memory holds its values, in a type that is reduced as it is."""
    return tensor.dtype in _NUMPY_TYPES and tensor.is_contiguous() and not tensor.is_neg()


def _resolved(tensor: Tensor) -> Tensor:
    return tensor.resolve_conj().resolve_neg()


def lengths_of(tensors: Iterable[Tensor]) -> str:
    """Return types and lengths: ``float32[100], int8[3] (4 times)``."""
    return _joined(tuple([(one.dtype, one.numel()) for one in tensors]))


def types_of(tensors: Iterable[Tensor]) -> str:
    """Return the types alone: ``float32``."""
    return ", ".join(sorted({_named(tensor.dtype) for tensor in tensors}))


@functools.lru_cache(maxsize=256)
def _joined(tensors: tuple[tuple[torch.dtype, int], ...]) -> str:
    return in_words(f"{_named(dtype)}[{count}]" for dtype, count in tensors)


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
