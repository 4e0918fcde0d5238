"""A state whose hook never runs says so: engines leave hooks out without a word, and gradients travel uncompressed.

Every state waits for its first gradient while the program's optimizers step, whichever they are. After
:data:`STEPS_MAX` steps, or when the program ends before that, it says why none may have come.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from netoffload import log
from netoffload.errors import UsageError

STEPS_MAX: Final = 100
"""Optimizer steps that a state waits: a program may begin with some for another model."""

ENGINES: Final = {
    "lightning": "Lightning registers a hook for CUDA only",
    "pytorch_lightning": "Lightning registers a hook for CUDA only",
    "accelerate": "Accelerate's comm_hook takes torch's own hooks only",
}

_waiting: list[FirstGradient] = []
_hooks: list[RemovableHandle] = []
"""Torch's hook, from the first state on. Nobody removes it: another thread's optimizer may be going through the hooks,
and raises if one is gone.
"""


class FirstGradient:
    """What a state waits for; its steps are those of all optimizers. With ``require`` it is an error if none comes."""

    def __init__(self, *, require: bool) -> None:
        self.steps, self.reason, self._require = 0, "", require
        if not _hooks:
            _hooks.append(register_optimizer_step_post_hook(_stepped))
        _waiting.append(self)

    def came(self) -> bool:
        """Wait no longer; return False if it has not waited: it came before, or another thread was faster."""
        try:
            _waiting.remove(self)
        except ValueError:
            return False
        return True

    def give_up(self) -> str:
        """Say that no gradient came, and return the line if that is an error."""
        if not self.came():
            return ""
        line = (
            f"no gradient reached a CompressionState in {self.steps} optimizer steps, so none was compressed: "
            f"{self.reason or self._likely()}"
        )
        if not self._require:
            log.say("no-gradient", line, level="warning")
            return ""
        return line

    def _likely(self) -> str:
        """Return the likely reason, by what the program has loaded and made."""
        alive = gc.get_objects()
        wrapped = [one for one in alive if issubclass(type(one), DistributedDataParallel)]
        states = [state for one in wrapped for _, state in one._comm_hooks]
        sharded = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())
        if any(getattr(state, "first", None) is self for state in states):
            return "its hook is registered, but the wrapped model was not called, or only inside no_sync()"
        if any(issubclass(type(one), sharded) for one in alive):
            return "the model is FSDP2's, which has no hook: use netoffload.torch.fsdp.compress"
        engines = [fault for name, fault in ENGINES.items() if name in sys.modules]
        if engines or wrapped:
            fault = f" ({engines[0]})" if engines else ""
            return (
                f"no DistributedDataParallel has it{fault}: call register_comm_hook(state, compress_hook) on the model"
            )
        return "there is no DistributedDataParallel that it could be registered on"


def _stepped(_optimizer: torch.optim.Optimizer, _arguments: Any, _named: Any) -> None:
    for one in list(_waiting):
        one.steps += 1
        if one.steps >= STEPS_MAX and (error := one.give_up()):
            raise UsageError(error)


@atexit.register
def _ended() -> None:
    errors = [one.give_up() for one in list(_waiting) if one.steps]
    for error in filter(None, errors):
        log.say("no-gradient", error, level="error")
    if any(errors):  # Python has no other way to change its status now
        sys.stdout.flush()
        os._exit(1)
