"""A strategy for Lightning's ``Trainer``: DDP whose gradients travel compressed, on CPUs as well.

::

    trainer = Trainer(accelerator="cpu", devices=4, strategy=NetOffloadStrategy(codec="packed", bound=10))

Lightning's own ``DDPStrategy`` takes a hook, but registers it only for CUDA, and leaves it out on CPUs without a word
(2.6). The extra ``engines`` brings Lightning.
"""

import dataclasses
from typing import Any

from lightning.pytorch.strategies import DDPStrategy
from torch.nn.parallel import DistributedDataParallel

from netoffload.errors import UsageError
from netoffload.torch.hook import compress
from netoffload.torch.options import Options
from netoffload.torch.state import CompressionState


class NetOffloadStrategy(DDPStrategy):  # type: ignore[misc]  # seen without its types
    """DDP with our hook; ``compression`` is the state of the model that is fitted, None before.

    Args:
        arguments: fields of :class:`~netoffload.torch.options.Options`; the others go to ``DDPStrategy``, and from
            there to ``DistributedDataParallel``.
    """

    compression: CompressionState | None = None

    def __init__(self, **arguments: Any) -> None:
        own = {field.name for field in dataclasses.fields(Options)} & arguments.keys()
        self._options = {name: arguments.pop(name) for name in own}
        Options(**self._options)  # refuses impossible ones here
        if hooks := [name for name in arguments if name.startswith("ddp_comm_")]:
            raise UsageError(
                f"NetOffloadStrategy has a hook of its own: leave out {', '.join(hooks)}, or use DDPStrategy"
            )
        super().__init__(**arguments)

    def configure_ddp(self) -> None:
        """Wrap the model, as Lightning does when it begins to fit, and register the hook."""
        super().configure_ddp()
        assert isinstance(self.model, DistributedDataParallel)
        self.compression = compress(self.model, **self._options)
