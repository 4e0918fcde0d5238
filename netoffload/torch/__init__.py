"""Doors for torch: torch's shape over ``netoffload.transport``."""

from netoffload.torch.backend import BackendOptions

__all__ = ["BackendOptions"]
