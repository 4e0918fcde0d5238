"""Registers the backend ``netoffload`` with torch.

Torch calls :func:`register` when it is imported (entry point of the group ``torch.backends``), in every program that
uses torch. So this module imports nothing of the project. The first process group loads the compiled parts.
"""

import importlib
from typing import Any, Final

import torch.distributed as dist

NAME: Final = "netoffload"


def register() -> None:
    """Make ``init_process_group("netoffload")`` known; a second call does nothing."""
    if dist.is_available() and NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def _create(group: Any, options: Any) -> Any:
    return importlib.import_module("netoffload.torch.backend_group").create(group, options)
