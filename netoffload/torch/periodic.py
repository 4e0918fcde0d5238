"""Door (d): ranks train separately, and agree on weights every p steps; docs/guide/torch.md has a table of methods.

Sources: Jiang and Agrawal, "A Linear Speedup Analysis ...", Algorithms 1 and 2 (psgd, rsgd, pqasgd); Douillard et al.,
"DiLoCo", Algorithm 1 (the outer optimizer, on the mean change).
"""

import json
from collections.abc import Callable
from numbers import Integral
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from netoffload.collectives import allgather_payloads
from netoffload.compiled.arrays import Float32Array
from netoffload.config import check_choice
from netoffload.errors import UsageError
from netoffload.methods import (
    ChangeAveraging,
    GradientReducer,
    Member,
    MethodSpec,
    Outer,
    Sent,
    WeightExchange,
    method_for,
    parse,
)
from netoffload.methods.floats import RingReducer
from netoffload.torch.optimizer import refuse_unfrozen
from netoffload.torch.options import compare
from netoffload.torch.staging import added_as
from netoffload.torch.state import CompressionState
from netoffload.transport import DataPlane

METHODS: Final = ("psgd", "rsgd", "pqasgd", "changes")


class Periodic:
    """Wraps a model and its optimizer: ``step()`` takes the optimizer's step, and averages when it is time.

    ::

        periodic = Periodic(model, torch.optim.SGD(model.parameters(), 0.1), every=8, outer=Outer())
        for images, labels in batches:
            loss(model(images), labels).backward()
            periodic.step()
            optimizer.zero_grad()
        periodic.finish()

    The ranks must begin with the same weights (:func:`~netoffload.torch.optimizer.broadcast_parameters`). The
    optimizer's momentum stays with its rank. Buffers (BatchNorm's) are not averaged.

    ``method`` is psgd, rsgd, pqasgd (with parameters as for ``netoffload train``: ``pqasgd:levels=15``), or changes,
    which travel as the ``state`` says. An ``outer`` optimizer on the mean change makes it DiLoCo; not with ``rsgd``.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        every: int,
        method: str = "psgd",
        outer: Outer | None = None,
        state: CompressionState | None = None,
    ) -> None:
        name, _, items = method.partition(":")
        check_choice("method", name, METHODS)
        if outer is not None and name == "rsgd":
            raise UsageError("rsgd averages a part of the weights at a time: an outer optimizer needs psgd or pqasgd")
        whole: object = every
        if not isinstance(whole, Integral) or isinstance(whole, bool) or whole < 1:
            raise UsageError(f"every={every!r} is not a number of steps: give 1 or more")
        self.model, self.optimizer, self.every, self.outer = model, optimizer, every, outer
        self.state = state or CompressionState()
        self._is_rotating, self._is_by_changes = name == "rsgd", name == "changes"
        family = "psgd" if self._is_by_changes else name
        self._spec = parse(f"{family}:{','.join(filter(None, (f'p={every}', items)))}", batch=self.state.options.batch)
        self._parameters = [one for one in model.parameters() if one.requires_grad]
        if not self._parameters:
            raise UsageError("no parameter of the model learns: Periodic has nothing to average")
        for one in self._parameters:
            added_as(one)  # refuses complex numbers
        self._known = set(self._parameters)
        self.state.layers.bucket(self._parameters)
        self._flat = self._gathered()
        self._method: WeightExchange | None = None
        self._plane: DataPlane | None = None
        self._memory: dict[str, Any] | None = None
        self._steps = 0
        self._kind = name if outer is None else f"{name} with an outer optimizer"
        self._compared = {"every": every, "method": method, "outer": None if outer is None else str(outer)}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the optimizer's step, and average if it is time; all ranks call it together."""
        refuse_unfrozen(self.model.parameters(), self._known, "Periodic")
        if self._steps == 0:  # until then the caller may change the weights
            self._gather()
        loss = self.optimizer.step(closure) if closure is not None else self.optimizer.step()
        self._steps += 1
        self.state.count(self._flat.nbytes, is_last=True)
        if self._is_rotating or self._steps % self.every == 0:
            self._average()
        return loss

    @property
    def sent(self) -> Sent:
        """What this rank has sent of the weights."""
        return Sent() if self._method is None else self._method.sent

    def finish(self) -> None:
        """Make all replicas equal after the last step; all ranks call it together."""
        if self._is_rotating:
            self._gather()
            self._exchange(lambda method: method.finish(self._flat))
        elif self._steps % self.every:
            self._average()

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank remembers besides model and optimizer, for :meth:`load_state_dict`."""
        return {
            "kind": self._kind,
            "steps": self._steps,
            "synchronised": self._flat.tobytes(),
            "method": self._memory if self._method is None else self._method.memory(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned on this rank."""
        if (kind := state.get("kind", self._kind)) != self._kind:
            raise UsageError(f"the state was saved with {kind}, this run has {self._kind}: give it the same method")
        if missing := sorted({"steps", "synchronised", "method"} - state.keys()):
            raise UsageError(f"the state has no {', '.join(missing)}: it was not made by state_dict(), or is cut")
        octets = state["synchronised"]
        if len(octets) != self._flat.nbytes:
            raise UsageError(
                f"the state belongs to a model of {len(octets) / 4:g} parameters, this one has {self._flat.size}"
            )
        self._flat[:] = np.frombuffer(octets, np.float32)
        self._steps, self._memory = state["steps"], state["method"]
        self._method = None
        self._compared["resumed_after_step"] = self._steps

    def __getstate__(self) -> dict[str, Any]:
        """Return what is copied or pickled: no connections."""
        memory = self._memory if self._method is None else self._method.memory()
        return {**vars(self), "_memory": memory, "_method": None, "_plane": None}

    def __setstate__(self, held: dict[str, Any]) -> None:
        """Take over what was copied or pickled."""
        vars(self).update(held)
        self.state.layers.bucket(self._parameters)

    def _average(self) -> None:
        # The optimizer has applied the gradient already: the method gets none, and its update fetches the weights.
        nothing = np.empty(0, np.float32)
        self._exchange(lambda method: method.step(nothing, self._flat, lambda _: self._gather()))

    def _exchange(self, call: Callable[[WeightExchange], None]) -> None:
        """Call the method, and take over the weights that it leaves."""
        plane = self.state.connected().plane
        if self._method is not None and self._plane is not plane:  # the state was closed, and has connected anew
            self._memory, self._method = self._method.memory(), None
        if self._method is None:
            # Not with the options that a state compares when it connects: it may be connected already.
            compare(self._allgather, self._compared)
            self._method, self._plane = self._made(plane), plane
            if self._memory is not None:
                self._method.remember(self._memory)
        method = self._method
        self.state.run(lambda _: call(method))
        parts = torch.split(torch.from_numpy(self._flat), [one.numel() for one in self._parameters])
        with torch.no_grad():
            for one, part in zip(self._parameters, parts, strict=True):
                one.copy_(part.view_as(one))

    def _allgather(self, value: Any) -> list[Any]:
        """Return every rank's JSON value."""
        own = np.frombuffer(json.dumps(value).encode(), np.uint8)
        payloads = self.state.run(lambda plane: allgather_payloads(plane.exchange, own))
        return [json.loads(octets.tobytes()) for octets in payloads]

    def _made(self, plane: DataPlane) -> WeightExchange:
        """Return the method. Except for rsgd its period is 1, because :meth:`step` calls it only when it is time."""
        spec, options = self._spec, self.state.options
        layout, feeds = self.state.layers.layout, options.error_feedback
        member = Member(plane.exchange, None, layout, options.seed, feeds, move=plane.move)
        if self._is_rotating:
            return _weights(spec, member)
        spec = MethodSpec(spec.name, spec.short, spec.family, 1, spec.compressor)
        if self._is_by_changes:
            return ChangeAveraging(spec, member, self.state.reducer(), self.outer)
        if self.outer is None:
            return _weights(spec, member)
        reducer: GradientReducer | None = None if spec.compressor else RingReducer(parse("inc", batch=1), member)
        return ChangeAveraging(spec, member, reducer, self.outer)

    def _gathered(self) -> Float32Array:
        flat: Float32Array = torch.cat([one.detach().reshape(-1).float().cpu() for one in self._parameters]).numpy()
        return flat

    def _gather(self) -> None:
        self._flat[:] = self._gathered()


def _weights(spec: MethodSpec, member: Member) -> WeightExchange:
    method = method_for(spec, member)
    assert isinstance(method, WeightExchange)
    return method
