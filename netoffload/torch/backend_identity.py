"""What torch asks a process group about itself: names, devices, abilities. Its own class would ask a C++ backend."""
# mypy: disable-error-code="override, assignment, misc"
# torch's stubs describe overloads, which C++ selects by type. Only the first form of each calls Python classes.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.distributed import ProcessGroup, Store  # type: ignore[attr-defined]  # Store is not declared public

from netoffload.errors import UsageError
from netoffload.torch_plugin import NAME

CPU: Final = torch.device("cpu")


class NamedGroup(ProcessGroup):
    """A process group for CPU tensors that is its own backend.

    Args:
        rank: this rank.
        size: number of ranks.
        store: the store that the ranks share.
    """

    supports_splitting = supports_coalescing = supports_time_estimate = supports_shrinking = False
    """Abilities of NCCL that a backend may have."""

    def __init__(self, rank: int, size: int, store: Store) -> None:
        """Have no name yet: torch sets it."""
        super().__init__(rank, size)  # type: ignore[call-arg]  # the form for subclasses
        self._store = store
        self._name = self._description = ""

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the backend's name in ``init_process_group``."""
        return NAME

    def name(self) -> str:
        """Return the same."""
        return NAME

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        """Return this group's name in torch's registry."""
        return self._name

    def getGroupDesc(self) -> str:  # noqa: N802 - torch's name
        """Return the description that the group was made with."""
        return self._description

    def get_group_store(self) -> Store:
        """Return the store that the ranks share."""
        return self._store

    group_name, group_desc = property(getGroupName), property(getGroupDesc)

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property
    def _device_types(self) -> Sequence[torch.device]:
        return [CPU]

    def _get_backend(self, device: Any) -> NamedGroup:
        if torch.device(device).type != CPU.type:
            raise UsageError(f"the netoffload backend takes CPU tensors, not tensors on {device}: call .cpu() first")
        return self
