"""The options of a :class:`~netoffload.torch.state.CompressionState`."""

from __future__ import annotations

import dataclasses
import os

from netoffload.config import ENV_OFFLOAD, INLINE_BOUND_K, INLINE_CODEC, Offload, parse_offload
from netoffload.errors import UsageError
from netoffload.methods import GradientReducer, MethodSpec, parse
from netoffload.methods.scales import AUTO, checked_scale
from netoffload.transport import Settings
from netoffload.transport.dataplane import LATE_S_DEFAULT, TIMEOUT_S_DEFAULT


@dataclasses.dataclass(frozen=True)
class Options:
    """How gradients travel; the same on all ranks.

    Attributes:
        offload: who applies the codec: ``nic``, ``inline``, ``auto`` or ``off``; None: $NETOFFLOAD_OFFLOAD, else auto.
        codec: the codec by which NICs or this process compress; None: the NIC's, or without a NIC ``inline``'s default.
        bound: k of the codec's error bound 2^-k; None: likewise.
        compressor: used instead of a codec; a name that :func:`netoffload.methods.parse` knows:
            ``terngrad``, ``qsgd:levels=15``, ``wgt:threshold=0.002``, ``8bit-dynamic``, ``fp16``.
        error_feedback: add the residual to the next gradient.
        scale: a power of two; or ``auto``: a power of two per bucket, from its root mean square; None: 1.
        start_step: number of first steps that travel exact; at least 1, because DDP shows its parameters in the first.
        seed: seed of the compressors' random numbers.
        batch: samples per rank and step; some rules of ``qsgd`` and ``pqasgd`` need it.
        exact_below: parameters with fewer values travel exact.
        exact_names: parameters whose names match one of these patterns (``*.embedding.*``) travel exact.
        exact_vectors: parameters of one dimension (biases, norms) travel exact.
        exact_last: the last layer travels exact.
        timeout_s: silence after which a rank is lost.
        late_s: how long a rank that lives may keep the others waiting.

    Raises:
        UsageError: an impossible value, or a method that moves weights.
    """

    offload: str | None = None
    codec: str | None = None
    bound: int | None = None
    compressor: str | None = None
    error_feedback: bool = False
    scale: float | str | None = AUTO
    start_step: int = 1
    seed: int = 0
    batch: int = 1
    exact_below: int = 0
    exact_names: tuple[str, ...] = ()
    exact_vectors: bool = False
    exact_last: bool = False
    timeout_s: float = TIMEOUT_S_DEFAULT
    late_s: float = LATE_S_DEFAULT

    def __post_init__(self) -> None:
        """Refuse impossible options before a rank waits for the others."""
        if isinstance(self.exact_names, str):
            raise UsageError(f"exact_names is a list of patterns: write [{self.exact_names!r}]")
        object.__setattr__(self, "exact_names", tuple(self.exact_names))
        object.__setattr__(self, "scale", checked_scale(self.scale))
        if self.start_step < 1:
            raise UsageError(f"start_step {self.start_step} is less than 1: the first step always travels exact")
        if self.compressor is not None and (self.codec, self.bound) != (None, None):
            raise UsageError("a compressor takes the place of a codec: give compressor, or codec and bound, not both")
        self.settings()
        self.spec()

    @property
    def needs_names(self) -> bool:
        """Whether parameters must be known by their names."""
        return bool(self.exact_names) or self.exact_last

    def settings(self) -> Settings:
        """Return the transport's settings.

        Raises:
            UsageError: an unknown codec or offload, or a bound out of range.
        """
        asked = self.offload or os.environ.get(ENV_OFFLOAD) or Offload.AUTO
        offload = Offload.OFF if self.compressor is not None else parse_offload(asked)
        codec, bound = self.codec, self.bound
        if offload is Offload.OFF:
            codec = bound = None
        elif (codec, bound) != (None, None):
            codec, bound = codec or INLINE_CODEC, INLINE_BOUND_K if bound is None else bound
        return Settings(codec, bound, self.timeout_s, self.late_s, offload=offload)

    def spec(self) -> MethodSpec:
        """Return the method.

        Raises:
            UsageError: the method is unknown, moves weights, or has a server.
        """
        if self.compressor is None:
            return parse("inc" if self.settings().offload is Offload.OFF else "inc+c", batch=self.batch)
        name = self.compressor
        spec = parse(name, batch=self.batch)
        if not issubclass(spec.family.worker, GradientReducer):
            raise UsageError(f"{spec.short} moves weights, not gradients: use netoffload.torch.Periodic")
        if spec.has_server and "via=" not in name:
            spec = parse(f"{name}{',' if ':' in name else ':'}via=gather", batch=self.batch)
        if spec.has_server:
            raise UsageError(f"{name} needs a server, one rank more than the workers: write via=gather or via=ring")
        return spec
