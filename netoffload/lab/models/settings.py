"""The settings of ``netoffload model``: a class is a command (``netoffload.lab.declared``). Light to import."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from netoffload import config
from netoffload.errors import UsageError
from netoffload.lab.declared import Settings, setting
from netoffload.lab.units import parse_rate_bps

RATES_MBPS: Final = (10, 100, 1000, 2500, 10_000, 25_000, 40_000, 100_000, 400_000, 800_000)
"""Rates of Ethernet."""
MOST_GBIT: Final = 1600


@dataclass(frozen=True)
class EngineSettings(Settings):
    """Clock a gradient through the paper's 256-bit burst engine.

    It says what rate the compressor and the decompressor hold at this clock,
    how many cycles they stall and why, and how fast gradients then cross a
    10, 25 and 100 Gb/s line. A stall is a cycle in which no floats cross. A
    last table lists the bits and shifters of both engines.

    The model is plain Python, about 1 s per million floats; --bursts takes
    only the start of a long file.

    Example: netoffload model engine --clock 100MHz --gradients gaussian:0.002 --json
    """

    experiment: ClassVar = "netoffload.lab.models.engine_model:EngineModel"
    codec: str = setting("inceptionn", "A codec that has an engine: inceptionn, bounded.")
    bound: int = setting(config.BOUND_K_DEFAULT, "Error bound 2^-BOUND, 1..16.")
    clock: str = setting("100MHz", "Clock of the engine: 100MHz, 1.5GHz.")
    gradients: str = setting(
        "gaussian:0.002", "FILE.npy or FILE.bin (float32, little-endian), or gaussian:STANDARD_DEVIATION."
    )
    count: int = setting(100_000, "Floats to draw for gaussian.", least=1)
    bursts: int | None = setting(None, "Model the first BURSTS only, 8 floats each.", least=1, shown_default="all")
    seed: int = setting(1, "Seed of the values drawn.", least=0)


@dataclass(frozen=True)
class ScalingSettings(Settings):
    """Predict how long exchanges of a vector take on clusters of any size.

    By INCEPTIONN's formulas of latency, octets and sums (alpha, beta, gamma)
    it says from how many nodes on a ring's latency takes longer than its
    octets, and which exchange is fastest. It also says how much faster
    compression in NICs or by the ranks (inline) makes it.

    Example: netoffload model scaling --nodes 4..100000 --rate 1gbit..400gbit --figure scaling.svg

    Example: netoffload model scaling --rate 100mbit,1gbit --delay 50 --nodes 4..1024
    """

    experiment: ClassVar = "netoffload.lab.models.scaling:Scaling"
    nodes: str = setting("4..100000", "Numbers of nodes: 4..100000 (doublings), or 4,8,16.")
    rate: str = setting("1gbit..400gbit", "Rates of the links: 1gbit..400gbit, or 1gbit,10gbit.")
    size: str = setting("233MB", "Octets of the vector; default: AlexNet's.")
    delay: float = setting(0.02, "Delay of a link, one way, ms; the Internet: 50.", least=0)
    ratio: float = setting(8.0, "Compression ratio of the codec.", least=1)
    clock: str = setting("100MHz", "Clock of the NICs' engine: 32 octets of float32 a cycle.")
    core: str = setting("4GB", "Octets of float32 that a core encodes or decodes in a second.")
    add: str = setting("5GB", "Octets of float32 that a core adds in a second.")
    check: bool = setting(False, "Also simulate the schedules, up to 1024 nodes; takes half a minute.", "--check")
    figure: Path | None = setting(None, "Draw into this .png, .svg or .pdf.", shown_default=False)


MODELS: Final[dict[str, type[Settings]]] = {"engine": EngineSettings, "scaling": ScalingSettings}
"""The models of ``netoffload model`` by name."""


def node_counts(text: str) -> tuple[int, ...]:
    """Return the numbers of ``4..100000`` (both ends, and doublings of the first one between), or of ``4,8,16``."""
    try:
        first, dots, last = text.partition("..")
        found = [int(word) for word in ([first, last] if dots else text.split(","))]
    except ValueError as error:
        raise UsageError(f"nodes {text!r} are no numbers: write 4..100000 or 4,8,16") from error
    if min(found) < 2:
        raise UsageError(f"{min(found)} nodes exchange nothing: use at least 2")
    if dots:
        least, most = found
        if least > most:
            raise UsageError(f"nodes {text!r} end below their beginning: write {most}..{least}")
        doublings = (least << power for power in range(most.bit_length()))
        found = [*(count for count in doublings if count < most), most]
    return tuple(found)


def rates_bps(text: str) -> tuple[int, ...]:
    """Return the rates of ``1gbit..400gbit`` (both ends, and Ethernet's between), or of ``1gbit,10gbit``."""
    first, dots, last = text.partition("..")
    if not dots:
        return tuple(parse_rate_bps(word, MOST_GBIT) for word in text.split(","))
    least, most = parse_rate_bps(first, MOST_GBIT), parse_rate_bps(last, MOST_GBIT)
    if least > most:
        raise UsageError(f"rates {text!r} end below their beginning: write {last}..{first}")
    between = (10**6 * mbps for mbps in RATES_MBPS)
    return tuple(dict.fromkeys((least, *(rate for rate in between if least < rate < most), most)))
