"""A training script of the user's, run in this process as one rank alone, with its gradients taken on the way.

The script stays as it is. torch calls a hook before each optimizer step; there all gradients of the step are complete.
After enough steps the hook ends the script. Launchers' variables are hidden from it, so ``init_process_group`` makes a
group of one, and the gradients are those of one rank, which no exchange has averaged.
"""

import contextlib
import os
import runpy
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError

VECTORS_KEPT: Final = 4  # the latest gradients, which stand for those of other ranks

RANK_ALONE: Final = {
    **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"},  # any free port
}
"""What torchrun would say to a single rank."""


class _Enough(BaseException):
    """Ends the script; no ``except Exception`` of the script catches it."""


@dataclass
class Observed:
    """What a script did: the hook, which looks at the optimizer that steps first, and at no other."""

    steps: int  # after so many the script ends
    layer_sizes: tuple[int, ...] = ()  # floats of each parameter that learns, in the order of the optimizer's groups
    times_s: list[float] = field(default_factory=list)  # from one optimizer step to the next
    gradients: deque[Float32Array] = field(default_factory=lambda: deque(maxlen=VECTORS_KEPT))  # the latest
    _optimizer: Optimizer | None = None
    _last_s: float | None = None

    def __call__(self, optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        """Keep the gradients of a step, which torch is about to take."""
        if self._optimizer is None:
            self._optimizer = optimizer
        if optimizer is not self._optimizer:
            return
        now_s = time.perf_counter()
        if self._last_s is not None:
            self.times_s.append(now_s - self._last_s)
        parameters = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
        sizes = tuple(each.numel() for each in parameters)
        if sizes != self.layer_sizes:  # the first step, or the script has frozen a layer, or added one
            self.layer_sizes = sizes
            self.gradients.clear()
        self.gradients.append(np.concatenate([_flat(each) for each in parameters]))
        if len(self.times_s) >= self.steps:
            raise _Enough
        self._last_s = time.perf_counter()  # copying is not the script's computing


def _flat(parameter: torch.Tensor) -> Float32Array:
    """Return a parameter's gradient as float32[n]; zeros where a step has none."""
    if parameter.grad is None:
        return np.zeros(parameter.numel(), np.float32)
    gradient = parameter.grad.detach()
    if gradient.is_sparse:
        gradient = gradient.to_dense()
    flat: Float32Array = gradient.reshape(-1).to("cpu", torch.float32).numpy()
    return flat


def observe(argv: Sequence[str], steps: int, progress: Callable[[str], None] = lambda _said: None) -> Observed:
    """Run a script, a Python file with its arguments, until its optimizer has made some steps; it may end earlier.

    Its standard output goes to standard error.
    """
    script = argv[0]
    if not os.path.isfile(script):
        raise UsageError(f"there is no script {script}: give a Python file and its arguments after --")
    progress(f"running {os.path.basename(script)}")
    found = Observed(steps)
    handle = register_optimizer_step_pre_hook(found)
    try:
        with _as_rank_alone(argv), contextlib.redirect_stdout(sys.stderr):
            runpy.run_path(script, run_name="__main__")
    except _Enough:
        pass
    except SystemExit as exit_:
        if exit_.code not in (None, 0):
            raise UsageError(f"{script} ended with {exit_.code!r} before it had made {steps} steps") from exit_
    except Exception as error:
        traceback.print_exc()  # the script is the user's: so is its traceback
        raise UsageError(f"{script} failed: {type(error).__name__}: {error}") from error
    finally:
        handle.remove()
        if dist.is_initialized():
            dist.destroy_process_group()
    if not found.gradients or not found.times_s:
        made = len(found.times_s) + (1 if found.layer_sizes else 0)
        raise UsageError(f"{script} made {made} optimizer steps: an advice needs more, up to {steps} (--steps)")
    return found


@contextlib.contextmanager
def _as_rank_alone(argv: Sequence[str]) -> Iterator[None]:
    """Give the script its arguments, its folder among the modules', and an environment that names one rank."""
    kept_argv, kept_path, kept_env = sys.argv, list(sys.path), dict(os.environ)
    sys.argv = list(argv)
    sys.path.insert(0, os.path.dirname(os.path.abspath(argv[0])))
    os.environ.update(RANK_ALONE)
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # or the script would wait at the launcher's store
    try:
        yield
    finally:
        sys.argv, sys.path[:] = kept_argv, kept_path
        os.environ.clear()
        os.environ.update(kept_env)
