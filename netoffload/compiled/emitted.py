"""Names for the classes of Numba and llvmlite that functions pass on when they emit LLVM code.

Numba calls an intrinsic with the types of its arguments. It returns their signature and a function that emits the code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from llvmlite import ir
from numba.core.base import BaseContext
from numba.core.types import Type
from numba.core.typing.context import BaseContext as BaseTypingContext
from numba.core.typing.templates import Signature as NumbaSignature

Builder: TypeAlias = ir.IRBuilder
"""Takes instructions, one after the other."""

Value: TypeAlias = ir.Value
"""The result of an instruction."""

LlvmType: TypeAlias = ir.Type
"""The type of such a value: a number, a vector."""

NumbaType: TypeAlias = Type
"""The type of an argument, as Numba sees it."""

Context: TypeAlias = BaseContext
"""Knows how Numba lays out its types."""

TypingContext: TypeAlias = BaseTypingContext
"""Numba's first argument for an intrinsic."""

Signature: TypeAlias = NumbaSignature
"""Types of the arguments and of the result."""

Codegen: TypeAlias = Callable[[Context, Builder, Signature, list[Value]], Value]
"""Emits the code of one call of an intrinsic."""

Intrinsic: TypeAlias = tuple[Signature, Codegen]
"""The result of a function that is decorated with ``@intrinsic``."""


def held(builder: Builder, number: Value) -> Value:
    """Return an i64 that LLVM must keep in a general register, because its origin is hidden from LLVM."""
    word = ir.IntType(64)
    return builder.asm(ir.FunctionType(word, [word]), "", "=r,0", [number], side_effect=False)
