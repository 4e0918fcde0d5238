"""One line for Hugging Face: gradients of the models that Accelerate or its ``Trainer`` prepares travel compressed.

::

    accelerator = Accelerator(cpu=True)
    states = compress(accelerator, codec="packed", bound=10)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    trainer = Trainer(model, TrainingArguments(..., use_cpu=True), ...)
    states = compress(trainer.accelerator, codec="packed", bound=10)
    trainer.train()

Accelerate's own ``comm_hook`` names torch's hooks only. The extra ``engines`` brings both packages.
"""

import os
from typing import Any

import torch
from accelerate import Accelerator, DistributedType
from torch.nn.parallel import DistributedDataParallel

from netoffload.errors import UsageError
from netoffload.torch import hook
from netoffload.torch.options import Options
from netoffload.torch.state import CompressionState


def compress(accelerator: Accelerator, **options: Any) -> list[CompressionState]:
    """Register our hook on each model that the accelerator wraps in DDP from now on; return their states as they come.

    ``options`` are fields of :class:`~netoffload.torch.options.Options`. UsageError if no hook would run: a model is
    prepared already, the accelerator does not see the other ranks, or it wraps models in something else than DDP.
    """
    Options(**options)  # refuses impossible ones here
    kind: DistributedType = accelerator.distributed_type
    if accelerator._models:
        raise UsageError("the accelerator has prepared a model already: call compress before prepare")
    if kind is DistributedType.NO and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError(
            "the accelerator trains without the other ranks: on CPUs write Accelerator(cpu=True), and use_cpu=True in "
            "TrainingArguments"
        )
    if kind is not DistributedType.NO and not kind.value.startswith("MULTI_"):
        raise UsageError(
            f"the accelerator is for {kind.value}, which has no hook: for FSDP2 call netoffload.torch.fsdp.compress on "
            "the model that prepare returns"
        )
    states: list[CompressionState] = []
    prepare_model = accelerator.prepare_model

    def prepare(model: torch.nn.Module, *args: Any, **named: Any) -> torch.nn.Module:
        prepared: torch.nn.Module = prepare_model(model, *args, **named)
        wrapped = getattr(prepared, "_orig_mod", prepared)  # inside torch.compile's module
        if prepared is not model and isinstance(wrapped, DistributedDataParallel):
            states.append(hook.compress(wrapped, **options))
        return prepared

    accelerator.prepare_model = prepare
    return states
