"""A model's parameters by index, independent of the buckets in which they come."""

import fnmatch
from collections.abc import Iterable, Sequence

import torch

from netoffload.compressors import Layout
from netoffload.errors import UsageError
from netoffload.methods import Bucket
from netoffload.torch.options import Options


class Layers:
    """Parameters in the order of ``named_parameters``, or else in which they first come: the same on all ranks.

    ``names`` are for parameters that are counted as they come: those of a model that was saved.
    """

    owners: tuple[int, ...] = ()
    """By layer, the only rank that gets its sum; empty: all ranks get all sums."""

    def __init__(self, named_parameters: Iterable[tuple[str, torch.Tensor]] | None, names: Sequence[str] = ()) -> None:
        self.names: list[str] = []
        self._names = names
        self._sizes: Sequence[int] = ()
        self.parameters: list[torch.Tensor] = []
        self._index: dict[torch.Tensor, int] = {}
        self.are_named = named_parameters is not None
        self.is_closed = False  # no further parameter may come
        for name, parameter in named_parameters or ():
            if parameter.requires_grad:
                self._add(parameter, name)

    def bucket(self, parameters: Sequence[torch.Tensor]) -> Bucket:
        """Return the indices of parameters; UsageError if they are not those of this model."""
        if self._names and not self.names and len(parameters) != len(self._names):
            raise UsageError(
                "parameters of an unpickled state come in parts: make a CompressionState with named_parameters, and "
                "load its state_dict instead"
            )
        for parameter in parameters:
            if parameter not in self._index:
                if self.are_named:
                    raise UsageError("a parameter is not in named_parameters: give those of the whole model")
                if self.is_closed:
                    raise UsageError(
                        "a parameter comes that the first step did not have: a state belongs to one model; make a "
                        "CompressionState for each"
                    )
                at = len(self.names)
                self._add(parameter, self._names[at] if at < len(self._names) else f"parameter {at}")
        return tuple(self._index[parameter] for parameter in parameters)

    def expect(self, sizes: Sequence[int]) -> None:
        """Expect a model with parameters of these sizes; UsageError, and no change, if a known one has another."""
        for at, (name, parameter) in enumerate(zip(self.names, self.parameters, strict=True)):
            _check(sizes, at, name, parameter)
        if (self.are_named or self.is_closed) and len(sizes) != len(self.names):
            raise UsageError(f"the model that was saved has {len(sizes)} parameters, this one has {len(self.names)}")
        self._sizes = tuple(sizes)

    @property
    def layout(self) -> Layout:
        """Sizes of all expected parameters, or else of the known ones."""
        return Layout(tuple(self._sizes) or tuple(map(_floats_of, self.parameters)))

    def exact(self, options: Options) -> frozenset[int]:
        """Return the indices of parameters that travel exact."""
        last = self.names[-1].rpartition(".")[0] if options.exact_last and self.names else None
        return frozenset(
            index
            for index, (name, parameter) in enumerate(zip(self.names, self.parameters, strict=True))
            if parameter.numel() < options.exact_below
            or (options.exact_vectors and parameter.dim() <= 1)
            or any(fnmatch.fnmatch(name, pattern) for pattern in options.exact_names)
            or name.rpartition(".")[0] == last
        )

    def _add(self, parameter: torch.Tensor, name: str) -> None:
        _check(self._sizes, len(self.names), name, parameter)
        self._index[parameter] = len(self.names)
        self.names.append(name)
        self.parameters.append(parameter)


def _floats_of(parameter: torch.Tensor) -> int:
    """Return how many real values a gradient has; DDP's buckets hold a complex one as two of them."""
    return parameter.numel() * (2 if parameter.is_complex() else 1)


def _check(sizes: Sequence[int], at: int, name: str, parameter: torch.Tensor) -> None:
    if sizes and (at >= len(sizes) or sizes[at] != _floats_of(parameter)):
        raise UsageError(f"{name} has {_floats_of(parameter)} values, another number than in the model that was saved")
