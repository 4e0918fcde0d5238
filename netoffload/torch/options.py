"""The options of all doors: how values travel between ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from netoffload.config import (
    INLINE_BOUND_K,
    INLINE_CODEC,
    Offload,
    chosen_offload,
    parse_size_octets,
    whole_number,
)
from netoffload.errors import CollectiveError, MalformedError, UsageError
from netoffload.methods import MethodSpec, parse
from netoffload.methods.scales import AUTO, checked_scale
from netoffload.transport import Settings
from netoffload.transport.plane import is_required, refuse_off
from netoffload.transport.rendezvous.agreement import Gather
from netoffload.transport.rounds.exchange import LATE_S_DEFAULT, TIMEOUT_S_DEFAULT

ENV_BACKEND: Final = "NETOFFLOAD_BACKEND"
"""Environment variable with the codec for groups without options: ``packed:10`` or ``packed:10:64KiB``."""

MIN_OCTETS: Final = 64 * 1024
"""Shorter vectors stay exact by default: a fast network carries them in the time of a few hops."""

BACKEND: Final = ("codec", "bound", "offload", "scale", "min_octets", "timeout_s")
"""The options that a group of the backend has. It sees tensors, not layers or steps."""

OF_TRANSPORT: Final = ("codec", "bound", "offload", "timeout_s", "late_s")
"""The options that the connections compare by themselves, or that change no bits."""

LEAST: Final = {"start_step": 0, "seed": 0, "batch": 1, "exact_below": 0, "min_octets": 0}
"""The options that are whole numbers, and their smallest values."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How gradients travel; the same on all ranks.

    A :class:`~netoffload.torch.state.CompressionState` takes all of them but ``min_octets``; ``DistributedOptimizer``
    and ``Periodic`` have their state's. A group of the backend takes those of :data:`BACKEND`.
    """

    codec: str | None = None
    """The codec by which NICs or this process compress; None: the NIC's, or without a NIC ``inline``'s default."""
    bound: int | None = None  # k of the codec's error bound 2^-k; None: likewise
    offload: Offload | str | None = None
    """Who applies the codec: ``nic``, ``inline``, ``auto`` or ``off``; None: $NETOFFLOAD_OFFLOAD, else auto."""
    scale: float | str | None = AUTO
    """A power of two; or ``auto``: one per layer or segment, from its root mean square; None: 1."""
    compressor: str | None = None
    """Used instead of a codec, by a name of :func:`netoffload.methods.parse`: ``fp16``, ``qsgd``."""
    error_feedback: bool = False  # add the residual to the next gradient
    start_step: int = 1
    """Number of first steps that travel exact. 0 needs ``named_parameters``: without them a state knows the model's
    parameters only after the first step."""
    seed: int = 0  # of the compressors' random numbers
    batch: int = 1  # samples per rank and step; some rules of `qsgd` and `pqasgd` need it
    exact_below: int = 0  # parameters with fewer values travel exact
    exact_names: tuple[str, ...] = ()  # parameters whose names match a pattern (`*.embedding.*`) travel exact
    exact_vectors: bool = False  # parameters of one dimension (biases, norms) travel exact
    exact_last: bool = False  # the last layer travels exact
    require: bool = False
    """It is an error if offload is off, or if no gradient comes in the first 100 optimizer steps or before the program
    ends."""
    min_octets: int = MIN_OCTETS  # the backend leaves shorter vectors exact
    timeout_s: float = TIMEOUT_S_DEFAULT  # silence after which a rank is lost
    late_s: float = LATE_S_DEFAULT
    """How long a rank that lives may keep the others waiting; a group of the backend has its ``timeout``."""

    _timeout: ClassVar[None] = None  # torch's ``init_device_mesh`` reads it of options in ``backend_override``

    def __post_init__(self) -> None:
        """Refuse impossible options before a rank waits for the others."""
        if isinstance(self.exact_names, str) or not all(isinstance(name, str) for name in self.exact_names):
            raise UsageError(f"exact_names is {self.exact_names!r}: write a list of patterns, as in ['*.bias']")
        object.__setattr__(self, "exact_names", tuple(self.exact_names))
        object.__setattr__(self, "scale", checked_scale(self.scale))
        for field in dataclasses.fields(self):
            if field.type == "bool" and not isinstance(answer := getattr(self, field.name), bool):
                raise UsageError(f"{field.name} is {answer!r}: give True or False")
        for name, least in LEAST.items():
            if (number := whole_number(name, getattr(self, name))) < least:
                raise UsageError(f"{name} is {number}: give a whole number from {least} on")
            object.__setattr__(self, name, number)
        if self.seed >= 2**64:
            raise UsageError(f"seed {self.seed} is too large: give one below 2^64")
        compressor: object = self.compressor
        if not isinstance(compressor, str | None):
            raise UsageError(f"compressor is {compressor!r}: give its name as text, as in 'qsgd:levels=15'")
        if self.compressor is not None and (self.codec, self.bound) != (None, None):
            raise UsageError("a compressor takes the place of a codec: give compressor, or codec and bound, not both")
        self.settings()
        spec = self.spec()
        if self.error_feedback and self.compressor is not None and not spec.keeps_residual:
            raise UsageError(
                f"{spec.name} keeps no residual, because a ring's hops encode sums: leave error_feedback out, "
                f"or write {self.compressor.partition(':')[0]}:via=gather"
            )

    @classmethod
    def of_environment(cls) -> Options | None:
        """Return the options in ``$NETOFFLOAD_BACKEND``, None if it is not set."""
        text = os.environ.get(ENV_BACKEND)
        if not text:
            return None
        codec, _, rest = text.partition(":")
        bound, _, size = rest.partition(":")
        if not bound.isdecimal():
            raise UsageError(
                f"${ENV_BACKEND} is {text!r}: write codec:bound or codec:bound:size, as in packed:10:64KiB"
            )
        return cls(codec, int(bound), min_octets=parse_size_octets(size) if size else MIN_OCTETS)

    @property
    def needs_names(self) -> bool:
        """Whether parameters must be known by their names, or before the first step."""
        return bool(self.exact_names) or self.exact_last or self.start_step == 0

    def refuse_all_but(self, names: Sequence[str], door: str, cure: str) -> None:
        """Refuse options that a door does not have: others than ``names`` that differ from their defaults."""
        for field in dataclasses.fields(self):
            if field.name not in names and getattr(self, field.name) != field.default:
                raise UsageError(f"{door} has no {field.name}: {cure}")

    def compared(self) -> dict[str, Any]:
        """Return the options that ranks compare before they connect (:func:`compare`), as JSON values."""
        names = [field.name for field in dataclasses.fields(self) if field.name not in OF_TRANSPORT]
        return {name: list(value) if isinstance(value := getattr(self, name), tuple) else value for name in names}

    def settings(self) -> Settings:
        """Return the transport's settings."""
        offload = Offload.OFF
        if self.compressor is None:
            offload = chosen_offload(self.offload)
            if self.require or is_required():
                refuse_off(offload)
        codec, bound = self.codec, self.bound
        if offload is Offload.OFF:
            codec = bound = None
        elif (codec, bound) != (None, None):
            codec, bound = INLINE_CODEC if codec is None else codec, INLINE_BOUND_K if bound is None else bound
        return Settings(codec, bound, self.timeout_s, self.late_s, offload=offload)

    def for_weights(self) -> Settings:
        """Return the settings for what must keep every bit: ``DataPlane.move`` says whether ``exact`` codes it."""
        settings = dataclasses.replace(self.settings(), codec=None, bound_k=None, offload=Offload.OFF)
        if chosen_offload(self.offload) is Offload.OFF:
            return settings
        return dataclasses.replace(
            settings, codec="exact", bound_k=INLINE_BOUND_K, offload=Offload.INLINE, only_moves=True
        )

    def spec(self) -> MethodSpec:
        """Return the method; UsageError if it moves weights, or has a server."""
        if self.compressor is None:
            return parse("inc" if self.settings().offload is Offload.OFF else "inc+c", batch=self.batch)
        name = self.compressor
        spec = parse(name, batch=self.batch)
        if not spec.sums_gradients:
            raise UsageError(f"{spec.short} moves weights, not gradients: use netoffload.torch.Periodic")
        if spec.has_server and "via=" not in name:  # TernGrad's default
            spec = parse(f"{name}{',' if ':' in name else ':'}via=gather", batch=self.batch)
        if spec.has_server:
            raise UsageError(f"{name} needs a server, one rank more than the workers: write via=gather or via=ring")
        return spec


def compare(gather: Gather, options: Mapping[str, Any]) -> None:
    """Raise an error on all ranks if they have different options; collective. The error names two of them.

    ``options`` are JSON values by name; one that a rank lacks counts as None.
    """
    by_rank = gather(dict(options))
    try:
        _check_equal(by_rank)
    except CollectiveError:
        with contextlib.suppress(CollectiveError):
            gather(None)  # no rank ends, and the store with it, before all ranks have read the options
        raise


def _check_equal(by_rank: Sequence[Any]) -> None:
    for rank, options in enumerate(by_rank):
        if not isinstance(options, Mapping):
            raise MalformedError(
                f"rank {rank} sent {reprlib.repr(options)} where options belong: install the same version everywhere"
            )
        names = [name for name in {**by_rank[0], **options} if options.get(name) != by_rank[0].get(name)]
        if names:
            theirs, first = (" and ".join(f"{name} {one.get(name)}" for name in names) for one in (options, by_rank[0]))
            raise CollectiveError(
                f"ranks have different options: rank {rank} has {theirs}, rank 0 has {first}; give all ranks the same"
            )
