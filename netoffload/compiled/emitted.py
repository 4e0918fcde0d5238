"""Functions that emit LLVM code, and names for the classes of llvmlite that they pass on."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from llvmlite import ir
from numba.core.types import Type
from numba.extending import intrinsic

from netoffload.compiled.jit import JIT_DISABLED

Builder: TypeAlias = ir.IRBuilder  # takes instructions, one after the other
Value: TypeAlias = ir.Value  # the result of an instruction
LlvmType: TypeAlias = ir.Type  # the type of such a value: a number, a vector


def held(builder: Builder, number: Value) -> Value:
    """Return an i64 that LLVM must keep in a general register, because its origin is hidden from LLVM."""
    word = ir.IntType(64)
    return builder.asm(ir.FunctionType(word, [word]), "", "=r,0", [number], side_effect=False)


ARRAY: Final = None
"""In place of an argument's type: an array, whose emitter gets the address of its first octet."""


def emits(
    result: Type, *kinds: Type | None, twin: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Value | list[Value] | None]], Any]:
    """Make a function that emits code callable in kernels, with arguments of these types.

    The function takes the builder and a value per argument. It returns a value, a list of values for a tuple, or None.
    ``twin``, the definition in plain Python, takes its place under ``NUMBA_DISABLE_JIT=1``.
    """

    def decorate(emit: Callable[..., Value | list[Value] | None]) -> Any:
        if JIT_DISABLED and twin is not None:
            return twin

        # Numba calls an intrinsic with the types of its arguments, and takes their signature and what emits the code.
        def typed(_typing_context: Any, *given: Type) -> tuple[Any, Callable[..., Value]]:
            def codegen(context: Any, builder: Builder, signature: Any, args: list[Value]) -> Value:
                values = [
                    _first_octet(context, builder, one, arg) if kind is ARRAY else arg
                    for kind, one, arg in zip(kinds, given, args, strict=True)
                ]
                emitted = emit(builder, *values)
                if isinstance(emitted, list):
                    return context.make_tuple(builder, signature.return_type, emitted)
                return context.get_dummy_value() if emitted is None else emitted

            taken = (one if kind is ARRAY else kind for kind, one in zip(kinds, given, strict=True))
            return result(*taken), codegen

        # Numba matches a call with the names of these parameters. The builder stands where it expects its own context.
        functools.update_wrapper(typed, emit).__signature__ = inspect.signature(emit)  # type: ignore[attr-defined]
        return intrinsic(typed)

    return decorate


def _first_octet(context: Any, builder: Builder, kind: Type, array: Value) -> Value:
    return builder.bitcast(context.make_array(kind)(context, builder, array).data, ir.IntType(8).as_pointer())
