"""A model's parameters by index, whatever the buckets in which they come."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence

import torch

from netoffload.compressors import Layout
from netoffload.errors import UsageError
from netoffload.methods import Bucket
from netoffload.torch.options import Options


class Layers:
    """Parameters in the order in which they are named, or else in which they first come: the same on all ranks.

    Args:
        named_parameters: of the model; None: parameters are counted as they come.
        names: of the parameters that come.
    """

    def __init__(self, named_parameters: Iterable[tuple[str, torch.Tensor]] | None, names: Sequence[str] = ()) -> None:
        """Know the parameters that are named."""
        self.names: list[str] = []
        self._names = names
        self._parameters: list[torch.Tensor] = []
        self._index: dict[int, int] = {}
        self.are_named = named_parameters is not None
        for name, parameter in named_parameters or ():
            self._add(parameter, name)

    def bucket(self, parameters: Sequence[torch.Tensor]) -> Bucket:
        """Return the indices of parameters.

        Raises:
            UsageError: ``named_parameters`` lacks one.
        """
        for parameter in parameters:
            if id(parameter) not in self._index:
                if self.are_named:
                    raise UsageError("a parameter is not among named_parameters: give those of the whole model")
                at = len(self.names)
                self._add(parameter, self._names[at] if at < len(self._names) else f"parameter {at}")
        return tuple(self._index[id(parameter)] for parameter in parameters)

    @property
    def layout(self) -> Layout:
        """Sizes of all that are known."""
        return Layout(tuple(parameter.numel() for parameter in self._parameters))

    def exact(self, options: Options) -> frozenset[int]:
        """Return which of them travel exact."""
        last = self.names[-1].rpartition(".")[0] if options.exact_last and self.names else None
        return frozenset(
            index
            for index, (name, parameter) in enumerate(zip(self.names, self._parameters, strict=True))
            if parameter.numel() < options.exact_below
            or (options.exact_vectors and parameter.dim() <= 1)
            or any(fnmatch.fnmatch(name, pattern) for pattern in options.exact_names)
            or name.rpartition(".")[0] == last
        )

    def _add(self, parameter: torch.Tensor, name: str) -> None:
        self._index[id(parameter)] = len(self.names)
        self.names.append(name)
        self._parameters.append(parameter)
