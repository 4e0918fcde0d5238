"""Keeps ``torch.compile`` out of the backend's calls.

DDP's C++ code calls a process group's Python methods between the parts of a compiled model. The compiler would take
such a call for the user's code, and refuse the group's attributes with an internal error. So the methods, and all that
they call, run as they are.
"""

from __future__ import annotations

import types
from typing import TypeVar

import torch

Class = TypeVar("Class", bound=type)


def uncompiled(kind: Class) -> Class:
    """Mark the methods that a class defines; torch's C++ code and programs call them."""
    for name, value in list(vars(kind).items()):
        if isinstance(value, types.FunctionType) and not _skip(value.__code__):
            setattr(kind, name, torch.compiler.disable(value))  # type: ignore[no-untyped-call]  # imports the compiler, which takes two seconds
    return kind


def _skip(code: types.CodeType) -> bool:
    """Let the compiler skip a function and what it calls; return False if this version of torch has no such mark."""
    try:
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )
    except ImportError:
        return False
    set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    return True
