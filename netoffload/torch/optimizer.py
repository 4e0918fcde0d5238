"""Door (c): an optimizer that averages gradients over all ranks before it steps, with Horovod's interface.

::

    backward   ── gradient arrives ── bucket complete: it travels ── ... ── end of backward: every grad is the mean
    step                                                                    the wrapped optimizer's

When backward ends, nothing is under way. So whatever stands between backward and step sees means: clipping, a loss
scaler, a log. All ranks then find the same infinities.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import operator
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.weak import WeakTensorKeyDictionary

from netoffload.errors import UsageError
from netoffload.methods.buckets import cut
from netoffload.torch.backend_reductions import move_from
from netoffload.torch.backend_words import Words
from netoffload.torch.staging import Staged, added_as, lie_together
from netoffload.torch.state import LANES, CompressionState
from netoffload.transport import Request

BUCKET_OCTETS: Final = 25 * 1024 * 1024
"""Octets of float32 gradients that travel together: DDP's default."""


def _of_wrapped(name: str) -> property:
    """Return an attribute that callers read, set and delete at the wrapped optimizer."""
    return property(
        operator.attrgetter(f"optimizer.{name}"),
        lambda self, value: setattr(self.optimizer, name, value),
        lambda self: delattr(self.optimizer, name),
    )


_hooks: Any = WeakTensorKeyDictionary()
"""By parameter, the handle of the hook of the wrapper that was made last."""


class _Pass:
    """A pass of backward. Only the engine owns it, and drops it when the pass ends, be it by an error."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended

    def __call__(self) -> None:
        """End it without an error."""
        self._ended()


class DistributedOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer: gradients are averaged while backward goes on, and are means when it ends.

    ::

        state = CompressionState(compressor="qsgd:levels=15", named_parameters=model.named_parameters())
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), state)
        broadcast_parameters(model.state_dict(), state=state)

    Buckets are cut once, from the last parameter to the first, and travel in this order on all ranks. Gradients that
    lie one after the other in one memory are summed there, without a copy. A parameter that a rank did not use has a
    gradient of zeros there, and gets the mean like any other. One that a rank has frozen keeps its ``grad`` there.
    Sparse gradients become dense. A wrapper takes the place of an earlier one of the same parameters.

    Hooks, state and ``state_dict()`` are the wrapped optimizer's. What this rank remembers of its gradients is in
    ``compression.state_dict()``. A deep copy of model and optimizer together goes on by itself, with connections of its
    own. So do both from one file of ``torch.save``, over the default group.

    An optimizer that evaluates the loss itself (LBFGS) is refused: each rank would do so as often as its own loss says.
    Without a ``state`` one with default options is made, from ``named_parameters``. The gradients of
    ``backward_passes_per_step`` backward passes are added up before they travel, at most ``bucket_octets`` together.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        state: CompressionState | None = None,
        *,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
        backward_passes_per_step: int = 1,
        bucket_octets: int = BUCKET_OCTETS,
    ) -> None:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise UsageError(
                f"{type(optimizer).__name__} evaluates the loss as often as each rank's own loss says, so ranks would "
                "make different calls: take an optimizer whose step() needs no closure"
            )
        if not isinstance(backward_passes_per_step, int) or backward_passes_per_step < 1:
            raise UsageError(f"backward_passes_per_step={backward_passes_per_step!r}: give a whole number of 1 or more")
        self.optimizer = optimizer
        self.compression = state or CompressionState(named_parameters=named_parameters)
        parameters = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
        for one in parameters:
            added_as(one)  # refuses complex numbers
        self._buckets = _cut(parameters, bucket_octets)
        self._bucket_of = {one: at for at, bucket in enumerate(self._buckets) for one in bucket}
        self.compression.layers.bucket(parameters)  # makes all parameters known before the first one travels
        self._passes = backward_passes_per_step
        self._bucket_octets = bucket_octets
        self.compression.declared.update(
            door="DistributedOptimizer", bucket_octets=bucket_octets, backward_passes_per_step=backward_passes_per_step
        )
        self._is_synchronised = False
        self._begin()
        for one in parameters:
            if (earlier := _hooks.get(one)) is not None:
                earlier.remove()  # two wrappers would sum one gradient twice
            _hooks[one] = one.register_post_accumulate_grad_hook(self._arrived)

    def __getattr__(self, name: str) -> Any:
        """Return what ``Optimizer.__init__`` would have set, which did not run here, such as hooks."""
        if name == "optimizer":  # not set yet
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    # Schedulers read these. Without a setter, because the wrapped optimizer would not see what a caller sets here.
    param_groups, state, defaults = (
        property(operator.attrgetter(f"optimizer.{name}")) for name in ("param_groups", "state", "defaults")
    )

    # A loss scaler sets them where the optimizer unscales by itself and skips steps (``fused=True``).
    grad_scale, found_inf = _of_wrapped("grad_scale"), _of_wrapped("found_inf")

    def __reduce__(self) -> Any:
        """Return what a copy, or a wrapper read from a file, is made from: copies of optimizer, state, parameters."""
        options = {"backward_passes_per_step": self._passes, "bucket_octets": self._bucket_octets}
        state = self.compression
        return _wrapped_again, (type(self), self.optimizer, state, state.layers.parameters, options)

    @torch.no_grad()
    def synchronize(self) -> None:
        """Make every ``grad`` the mean, unless the end of backward has done so.

        Only needed after fewer backward passes than ``backward_passes_per_step``, before gradients are clipped or
        unscaled; :meth:`step` calls it.
        """
        if self._is_synchronised:
            return
        self._refuse_after_error()
        self._start(len(self._buckets))
        try:
            self._put_back()
        except Exception:
            for _, request in self._under_way:  # the other buckets lie in gradients that the next pass changes
                with contextlib.suppress(Exception):
                    request.wait()
            raise
        finally:
            self._begin()
        self._is_synchronised = True

    def _put_back(self) -> None:
        """Wait for the buckets under way, and make every ``grad`` the mean."""
        for bucket, (staged, request) in zip(self._buckets, self._under_way, strict=True):
            request.wait()
            mean = staged.put_back()
            for one, part in zip(bucket, torch.split(mean, [one.numel() for one in bucket]), strict=True):
                if not one.requires_grad:  # frozen since: a gradient of zeros would let momentum and decay move it
                    continue
                if one.grad is None or one.grad.is_sparse:
                    one.grad = torch.empty_like(one)
                if one.grad.data_ptr() != part.data_ptr():
                    one.grad.copy_(part.view_as(one))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for the means, and take a step; ``closure`` includes backward, and returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.optimizer.param_groups:
            refuse_unfrozen(group["params"], self._bucket_of, "DistributedOptimizer")
        self.synchronize()
        self._is_synchronised = False
        self.optimizer.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Call the wrapped optimizer's ``zero_grad``."""
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state, which an optimizer of its class can load."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of an optimizer of the wrapped one's class, wrapped or not.

        A state with this rank's compression state in it, as older versions made it, is loaded with that.
        """
        if state_dict.keys() == {"optimizer", "compression"}:
            self.compression.load_state_dict(state_dict["compression"])
            state_dict = state_dict["optimizer"]
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse, because the buckets are cut already."""
        raise UsageError("add parameter groups to the optimizer before DistributedOptimizer wraps it")

    def _begin(self) -> None:
        self._missing = [len(bucket) * self._passes for bucket in self._buckets]
        self._passed = 0
        self._pass: weakref.ref[_Pass] | None = None
        self._under_way: list[tuple[Staged, Request]] = []

    def _arrived(self, parameter: torch.Tensor) -> None:
        """Start the buckets that are complete; called in autograd's thread."""
        self._is_synchronised = False
        self._refuse_after_error()
        if self._pass is None:
            # Only the engine knows when a pass ends: a parameter that the loss does not reach never arrives.
            backward = _Pass(self._backward_ended)
            self._pass = weakref.ref(backward)
            torch.autograd.Variable._execution_engine.queue_callback(backward)
        self._missing[self._bucket_of[parameter]] -= 1
        ready = len(self._under_way)  # buckets start in their order, or ranks would sum different ones
        while ready < len(self._buckets) and self._missing[ready] <= 0:
            ready += 1
        self._start(ready)

    def _backward_ended(self) -> None:
        """Wait for the means after the last pass, also of parameters that had no part in it."""
        self._pass = None
        self._passed += 1
        if self._passed >= self._passes:
            self.synchronize()

    def _refuse_after_error(self) -> None:
        """Go on after a pass that raised, unless gradients had left: the ranks may have sent different buckets."""
        if self._pass is None or self._pass() is not None:
            return
        self._pass = None
        self._missing = [len(bucket) * (self._passes - self._passed) for bucket in self._buckets]
        if self._under_way:
            self._begin()
            error = UsageError(
                "the last backward() raised after some of its gradients had left, so ranks may wait for different "
                "ones: call close() of the CompressionState on all ranks, then backward() again"
            )
            self.compression.connected().give_up(error)
            raise error

    def _start(self, until: int) -> None:
        """Start the buckets before number ``until``, in their order."""
        for at in range(len(self._under_way), until):
            bucket = self._buckets[at]
            parts = [torch.zeros_like(one) if one.grad is None else one.grad.to_dense() for one in bucket]
            staged = Staged(_joined([part.reshape(-1) for part in parts]))
            layers = self.compression.layers.bucket(bucket)
            request = self.compression.submit(staged, layers, is_last=at == len(self._buckets) - 1)
            self._under_way.append((staged, request))


def _wrapped_again(
    kind: type[DistributedOptimizer],
    optimizer: torch.optim.Optimizer,
    state: CompressionState,
    parameters: list[torch.Tensor],
    options: dict[str, Any],
) -> DistributedOptimizer:
    state.layers.bucket(parameters)  # a state from a file counts them in the order in which it had them
    return kind(optimizer, state, **options)


def refuse_unfrozen(parameters: Iterable[torch.Tensor], known: Container[torch.Tensor], door: str) -> None:
    """Refuse a parameter that learns and was frozen when a door was made: it would differ from rank to rank."""
    for one in parameters:
        if one.requires_grad and one not in known:
            raise UsageError(
                f"a parameter of shape {tuple(one.shape)} learns, and was frozen when {door} was made: "
                "make a new one after unfreezing"
            )


def broadcast_parameters(
    parameters: Mapping[str, Any] | Iterable[tuple[str, Any]],
    root: int = 0,
    *,
    state: CompressionState | None = None,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Give all ranks the root's tensors, exact, in place; collective.

    ``parameters`` are ``model.state_dict()`` or ``model.named_parameters()``: dense tensors of any type, of the same
    names, sizes and types on all ranks. Values that are not tensors are left alone. Without the ``state`` whose
    connections to use, the ranks of ``group`` connect for this call.
    """
    named = parameters.items() if isinstance(parameters, Mapping) else parameters
    tensors = [value.detach() for _, value in named if isinstance(value, torch.Tensor)]
    here = [tensor.cpu() for tensor in tensors]  # the tensors themselves, if they are there already
    words = Words(here)
    with _connected(state, group) as one:
        one.weights().run(lambda plane: move_from(plane, words.load(), root), LANES)
    words.store()
    for tensor, own in zip(tensors, here, strict=True):
        if own.device != tensor.device:
            tensor.copy_(own)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root: int = 0,
    *,
    state: CompressionState | None = None,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Give all ranks the root's optimizer state (momentum, steps, learning rates), for example of a checkpoint.

    Collective. The other ranks' optimizers may be new, of the same class and parameters, wrapped or not. Connections
    are those of :func:`broadcast_parameters`.
    """
    saved = _saved(optimizer)
    with _connected(state, group) as one:
        is_root = one.weights().plane.exchange.rank == root
        octets = torch.frombuffer(saved, dtype=torch.uint8)
        length = torch.tensor([len(octets)])
        broadcast_parameters([("length", length)], root, state=one)
        if not is_root:
            octets = torch.empty(int(length), dtype=torch.uint8)
        broadcast_parameters([("state", octets)], root, state=one)
    if not is_root:
        optimizer.load_state_dict(torch.load(io.BytesIO(octets.numpy().tobytes()), weights_only=True))


def _saved(optimizer: torch.optim.Optimizer) -> bytearray:
    """Return an optimizer's state as a file that ``torch.load`` reads with ``weights_only``."""
    file, held = io.BytesIO(), optimizer.state_dict()
    held["param_groups"] = [  # numbers of NumPy are nothing that it reads
        {name: value.item() if isinstance(value, np.generic) else value for name, value in group.items()}
        for group in held["param_groups"]
    ]
    torch.save(held, file)
    return bytearray(file.getbuffer())


@contextlib.contextmanager
def _connected(state: CompressionState | None, group: dist.ProcessGroup | None) -> Iterator[CompressionState]:
    """Give the caller's state, or one for as long as the body runs."""
    if state is not None:
        yield state
        return
    with contextlib.closing(CompressionState(group)) as own:
        own.expect_no_gradient()
        yield own


def _cut(parameters: list[torch.Tensor], limit_octets: int) -> list[list[torch.Tensor]]:
    """Return buckets of parameters of one type and device: the last parameters first, in each in their order."""
    buckets = []
    for _, run in itertools.groupby(reversed(parameters), lambda one: (one.dtype, one.device)):
        alike = list(run)[::-1]
        sizes = [one.numel() for one in alike]
        buckets += [[alike[at] for at in bucket] for bucket in cut(sizes, max(limit_octets, 1))]
    return buckets


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """Return vectors one after the other: where they lie, if they do so in one memory, or else as a copy."""
    return parts[0].as_strided((sum(map(len, parts)),), (1,)) if lie_together(parts) else torch.cat(parts)
