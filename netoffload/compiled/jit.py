"""The one place that sets up Numba: options, and a cache that cannot be stale.

Numba's disk cache looks only at the file of each function. If a kernel is inlined from another file and that file
changes, Numba would still use the old code. So the name of the cache folder has a digest of all such sources.
"""

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import llvmlite.binding
import numba
from numba.core import config as numba_config
from numba.core import event, sigutils

from netoffload import log
from netoffload.compiled.cache import make_cache_dir
from netoffload.compiled.progress import PROGRESS

ENV_KERNEL: Final = "NETOFFLOAD_KERNEL"
"""Environment variable that forces a kernel variant (see ``netoffload.codec.kernels``)."""

F = TypeVar("F", bound=Callable[..., Any])

JIT_DISABLED: Final = bool(numba_config.DISABLE_JIT)
"""``NUMBA_DISABLE_JIT=1``: every kernel runs as plain Python, or its slow definition does."""


def cpu_features() -> dict[str, bool]:
    """Return the CPU features that compiled code may use: the CPU's, or those in ``NUMBA_CPU_FEATURES``.

    Check them before emitting an instruction: LLVM ends the process if its target lacks the instruction.
    """
    if JIT_DISABLED:
        return {}
    if numba_config.CPU_FEATURES is None:
        return dict(llvmlite.binding.get_host_cpu_features())
    return {word[1:]: True for word in numba_config.CPU_FEATURES.split(",") if word.startswith("+")}


def has_fast_bit_moves() -> bool:
    """Whether ``pext`` and ``pdep`` are instructions; on Zen 1 and 2 they are microcode, hundreds of cycles long."""
    name = numba_config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
    return cpu_features().get("bmi2", False) and name not in ("znver1", "znver2")


def _sources_digest() -> str:
    """Return a digest over all sources whose compiled functions are inlined into other files, or take their tuples."""
    package = Path(__file__).resolve().parents[1]
    daemon = package.parent / "daemon" / "netoffload_daemon"
    if not daemon.is_dir():  # installed as a wheel: the packages lie side by side
        daemon = package.parent / "netoffload_daemon"
    digest = hashlib.sha256(f"{numba.__version__} {os.environ.get(ENV_KERNEL, '')}".encode())
    folders = [package / name for name in ("compiled", "wire", "codec", "engine", "compressors")]
    names = (
        "codec_specs.py",
        "collectives/operations.py",
        *(f"transport/rounds/{name}.py" for name in ("loop_port", "meeting_loop", "ring_loop")),
        "transport/wiring/chunks.py",
    )
    files = tuple(package / name for name in names)
    for path in (*files, *(path for folder in (*folders, daemon) for path in sorted(folder.glob("*.py")))):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


if not os.environ.get("NUMBA_CACHE_DIR"):
    numba_config.CACHE_DIR = str(make_cache_dir(f"kernels-{_sources_digest()}") or "")

CACHE_DIR: Final = Path(numba_config.CACHE_DIR) if numba_config.CACHE_DIR else None
"""Where compiled kernels are kept: ``$NUMBA_CACHE_DIR``, else the folder from ``cache``; None: nowhere."""


class _ProgressListener(event.Listener):  # type: ignore[misc]  # numba is untyped
    """Hears of every kernel that is compiled because the cache lacks it."""

    def on_start(self, event: Any) -> None:
        PROGRESS.begin(event.data["dispatcher"].py_func.__name__)

    def on_end(self, event: Any) -> None:
        PROGRESS.end()


PROGRESS.folder = CACHE_DIR
event.register("numba:compile", _ProgressListener())

_OPTIONS: Final[dict[str, Any]] = {"nogil": True, "error_model": "numpy", "_nrt": False}
"""Without Numba's run time (``_nrt``) a kernel cannot make an array, and does not count references: its caller holds
the arrays. Counting takes two locked instructions for every array that a function passes on or takes out of a named
tuple: a third of the receiving NIC's time (docs/design/data-path.md)."""


def _compiled_once_per_type(dispatcher: Any) -> Any:
    """Make a call with a constant use the code for its type; return the kernel.

    Numba gives the constant 0 a type of its own. So it would compile a kernel, and all kernels that this one hands the
    argument to, once more for each constant of a caller. LLVM puts constants into what it inlines anyway.
    """
    call_template = dispatcher.get_call_template

    def without_constants(args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        plain = {name: numba.types.unliteral(kind) for name, kind in kws.items()}
        return call_template(tuple(map(numba.types.unliteral, args)), plain)

    dispatcher.get_call_template = without_constants
    return dispatcher


def _compiled(function: F, **options: Any) -> F:
    if JIT_DISABLED:
        return function
    return cast(F, _kept_if_possible(_compiled_once_per_type(numba.njit(**_OPTIONS, **options)(function))))


def _kept_if_possible(dispatcher: Any) -> Any:
    """Let a kernel serve this process also if the disk cannot keep it, or kept it badly; return the kernel."""
    save, load = dispatcher._cache.save_overload, dispatcher._cache.load_overload

    def load_or_warn(signature: Any, context: Any) -> Any:
        try:
            loaded = load(signature, context)
        except Exception:  # a file that a loss of power has cut may raise anything
            _warn_once("kernels_damaged", f"files in {CACHE_DIR} cannot be read: their kernels are compiled again")
            with contextlib.suppress(OSError):
                dispatcher._cache.flush()
            return None
        # Numba takes no lock: of two processes that save at the same time, one's code may get the other's name.
        is_ours = loaded is not None and loaded.signature.args == sigutils.normalize_signature(signature)[0]
        return loaded if is_ours else None

    def save_or_warn(signature: Any, compiled: Any) -> None:
        try:
            save(signature, compiled)
        except OSError as error:
            _warn_once("kernels_not_kept", f"compiled kernels cannot be kept in {CACHE_DIR}: {error.strerror}")

    dispatcher._cache.save_overload, dispatcher._cache.load_overload = save_or_warn, load_or_warn
    return dispatcher


@functools.cache
def _warn_once(event: str, message: str) -> None:
    log.say(event, message, level="warning")


def kernel(function: F) -> F:
    """Compile a function that touches no Python object: without the GIL, cached on disk.

    ``forceinline=False`` must be explicit: otherwise a callee inherits its caller's option. The constants of the
    codec's loops fill the registers, so these loops must not be inlined into one large function.
    """
    return _compiled(function, cache=CACHE_DIR is not None, forceinline=False)


def compiled_for(function: F, *examples: Any) -> F:
    """Return a kernel for arguments of the examples' types; its calls do not check types.

    Checking named tuples of arrays takes 2 us per call. Arguments of other types would be misread, so a caller may only
    pass objects that it made itself.
    """
    if JIT_DISABLED:
        return function
    return cast(F, cast(Any, function).compile(tuple(numba.typeof(example) for example in examples)))


def inline_kernel(function: F) -> F:
    """Like :func:`kernel`, for the innermost pieces: LLVM is asked to inline them."""
    return _compiled(function, cache=CACHE_DIR is not None, forceinline=True)


def merged_kernel(function: F) -> F:
    """Like :func:`inline_kernel`, for a thin function over large ones: it becomes a part of its caller before LLVM.

    Any other kernel is a library of its own, for which LLVM optimises all that it calls once more.
    """
    return _compiled(function, cache=CACHE_DIR is not None, inline="always")


def inlined_with(function: F) -> F:
    """Compile a function that takes another kernel as an argument: inlined into each caller, and cached with it."""
    return _compiled(function, forceinline=True)


def compiled_with(function: F) -> F:
    """Like :func:`inlined_with`, but the function stays a separate one in the caller's compiled code."""
    return _compiled(function, forceinline=False)
