"""The settings of every experiment of ``netoffload bench``, and of ``netoffload advise``.

A class here is a command: its docstring is the help, its fields are the options (``netoffload.lab.declared``). Nothing
heavy is imported; what needs more than ``netoffload.config`` to be checked is refused by the experiment.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from netoffload import config
from netoffload.errors import UsageError
from netoffload.lab.bench.jobs import COMPUTE, DDP_HOOKS, JOBS, RACERS
from netoffload.lab.declared import Settings, setting

if TYPE_CHECKING:
    from netoffload.lab.training.config import TrainSettings

GRADIENTS: Final = "gaussian:0.002"
CODEC_SIZES: Final = ("64KiB", "1MB", "16MB")
PEERS_ALL: Final = "all"
PEERS_NONE: Final = "none"

DATA_HELP: Final = (
    "digits (comes with scikit-learn), mnist, fashion-mnist, cifar10, text (comes with Python), or synthetic"
    "[:side=64,classes=10,...]: noise of any shape. Default: the model's own (see --list)."
)
DATA_DIR_HELP: Final = "Folder with MNIST's four IDX files, or CIFAR-10's .npz file or python batches."
RATE_HELP: Final = "Rate of every link: 100mbit, 1gbit, 2.5gbit."
MODEL_HELP: Final = "The model: hdc (INCEPTIONN's perceptron), or another of --list."
OPTIMIZER_HELP: Final = (
    "sgd, adam, adamw, rmsprop or adagrad, with parameters: sgd:momentum=0.9,weight_decay=1e-4. Default: the model's "
    "own."
)
LEARNING_RATE_HELP: Final = "Learning rate at the start. Default: the model's (see --list), 0.01 for terngrad."

_CODECS: Final = ", ".join(config.CODECS)
_values = partial(setting, GRADIENTS, "Values: gaussian:STANDARD_DEVIATION, or a float32 .npy file.")
_bound = partial(setting, config.BOUND_K_DEFAULT, "Error bound 2^-BOUND, 1..16.")
_codec = partial(setting, "inceptionn", f"Codec of the NICs: {_CODECS}.")
_mtu = partial(setting, 1500, "MTU of every link in octets.")
_data = partial(setting, None, DATA_HELP, shown_default=False)


def _seed(of: str) -> Any:
    return setting(1, f"Seed of {of}.", least=0)


def parse_vector_octets(text: str) -> int:
    """Return the octets of whole float32 in a size: ``16MB``, ``4096``."""
    if (octets := config.parse_size_octets(text) // 4 * 4) == 0:
        raise UsageError("size is less than one float32, 4 octets")
    return octets


def listed(text: str) -> tuple[str, ...]:
    """Return the words between commas, each once."""
    return tuple(dict.fromkeys(word for word in (part.strip() for part in text.split(",")) if word))


@dataclass(frozen=True)
class AllreduceSettings(Settings):
    """Sum a float32 vector over all nodes: our collectives beside MPICH, Open MPI and torch's gloo.

    Contenders that end in _nic or _comp go through emulated NICs, which share
    the cores with the ranks. All others run over plain wires. The ranks of
    ring_inline compress by themselves, with the codec of the NICs. In wa rank
    0 is a worker and the aggregator; in wa_comp only the gradients are tagged.
    mpich and openmpi choose their algorithm; mpich_ring and openmpi_ring use
    a ring.

    The answer is checked before a time is taken. For short vectors, up to
    32 KiB from all other ranks, 100 calls in a row are timed together and
    the time of one is reported. The bound is 2(p-1)/p · size / rate: a ring
    whose links carry payload only. Headers alone make a call take 1.046 of
    it. Octets are those on all wires; the ratio is a ring's payload over
    these octets. CPU seconds are those of all ranks and of all NICs together,
    per call. If a contender fails, the results of the others are reported.

    Example: netoffload bench allreduce -n 2 --size 1KiB --what ring --what mpich --json

    Example: netoffload bench allreduce -n 2 --rate 10gbit --what gloo --what ring_inline

    Example: netoffload bench allreduce -n 4 -n 8 --rate 200mbit --what ring --what wa
    """

    experiment: ClassVar = "netoffload.lab.bench.allreduce:Allreduce"
    nodes: tuple[int, ...] = setting(
        (4,), "Ranks, one per node: 4 (default); repeat to see how times grow.", "--nodes", "-n"
    )
    rate: str = setting("1gbit", RATE_HELP)
    size: tuple[str, ...] = setting(("25MB",), "Octets of the vector: 25MB (default), 64KiB; repeat for several.")
    repeat: int = setting(5, "Timed calls of each contender; one more warms up.", least=1)
    what: tuple[str, ...] = setting(
        (),
        f"{', '.join(JOBS)}; repeat for several; default: all that is installed, without ring_nic and openmpi_ring.",
    )
    gradients: str = _values()
    bound: int = _bound()
    codec: str = _codec()
    packing: str = setting("coalesced", f"Packing: {', '.join(config.PACKINGS)}.")
    mtu: int = _mtu()
    seed: int = _seed("the values")


@dataclass(frozen=True)
class CodecSettings(Settings):
    """Time the codecs, after checking what they decode against the oracle.

    Without --codec it times all codecs. hdc is a sample of gradients from a
    short training; 'netoffload train hdc --capture FILE' writes such a file.
    A vector shorter than the size is repeated. Speeds are octets of floats
    per second, medians; 'halves' is how NICs decode a block: from its front
    and its middle at once. Ctrl-C prints what has been measured.

    Example: netoffload bench codec --codec inceptionn --codec bounded --size 16MB
             netoffload bench codec --bound 6 --bound 10 --figure pareto.png
    """

    experiment: ClassVar = "netoffload.lab.bench.codec:CodecSpeed"
    codec: tuple[str, ...] = setting((), f"{_CODECS}; repeat for several.", shown_default=False)
    bound: tuple[int, ...] = setting((config.BOUND_K_DEFAULT,), "Error bound 2^-BOUND; repeat for several.")
    size: tuple[str, ...] = setting(CODEC_SIZES, f"Octets of the vector; default: {CODEC_SIZES}.")
    data: tuple[str, ...] = setting((), "gaussian:STANDARD_DEVIATION or hdc; default: 0.001, 0.01, 0.1 and hdc.")
    gradients: Path | None = setting(None, "Also a float32 .npy file; replaces the default hdc.")
    kernel: tuple[str, ...] = setting((), "avx512, avx2, plain; default: all that run here.")
    repeat: int = setting(9, "Timed samples of each codec and vector.", least=1)
    seed: int = _seed("the data")
    figure: Path | None = setting(None, "Also draw ratio against worst error: .png, .svg, .pdf.")


@dataclass(frozen=True)
class CompressorsSettings(Settings):
    """Measure the compressors: ratio, q, bias, errors, GB/s each way.

    q is the variance ratio |Q(v)-v|²/|v|², the mean over the repeats; the
    bias is |mean of Q(v) - v| / |v|. GB/s are octets of floats per second of
    one core's time, medians. 'netoffload train hdc --capture FILE' writes a
    file for --gradients; give --layers hdc with it.

    Example: netoffload bench compressors --compressor terngrad --compressor qsgd:levels=15,norm=max --json
    """

    experiment: ClassVar = "netoffload.lab.bench.compressors:Compressors"
    compressor: tuple[str, ...] = setting((), "NAME or NAME:PARAMETER=VALUE,...; repeat for several; default: all.")
    data: str = setting(GRADIENTS, "gaussian:STANDARD_DEVIATION, or hdc.")
    size: str = setting("16MB", "Octets of a gaussian vector.")
    gradients: Path | None = setting(None, "Take the first vector of this float32 .npy file.")
    layers: str | None = setting(None, "Lengths of the layers, 500,10, or hdc; default: hdc's for hdc, else one layer.")
    repeat: int = setting(9, "Timed samples, and repeats for error, bias and q.", least=2)
    seed: int = _seed("the data and of the compressors")


@dataclass(frozen=True)
class DdpSettings(Settings):
    """Train under torch's DDP over shaped links: its own exchange, its fp16 and PowerSGD hooks, and ours.

    inline_...: the ranks compress by themselves; _ef: with error feedback.
    nic_...: emulated NICs compress, and share the cores with the ranks. qsgd:
    every rank gathers payloads of QSGD with 15 levels. powersgd has one
    bucket, because gloo aborts with more.

    All contenders train the same steps from the same weights, and take turns.
    Replicas must be bit-identical before a time is reported. compute is the
    time of a step in which nothing travels. communicate is how much longer a
    step takes: compressing and waiting, without the part hidden behind
    backward. Octets are those on all wires, headers included. fp16 / wire says
    how many times fewer they are than the fp16 hook's. payload is a plain
    ring's octets over those that our hook sent.

    --until 0.9 trains every contender until its accuracy is 90 %, and --steps
    at most. Each first trains a quarter of the steps with every learning rate
    of --factors, on nine tenths of the training samples. It then takes the
    rate with the highest accuracy on the last tenth.

    Example: netoffload bench ddp -n 4 --rate 1gbit --model hdc --steps 30

    Example: netoffload bench ddp -n 2 --rate 100mbit --what gloo --what inline_bounded --json

    Example: netoffload bench ddp --rate 100mbit --steps 400 --until 0.9 --figure race.png
    """

    experiment: ClassVar = "netoffload.lab.bench.ddp:Ddp"
    model: str = setting("hdc", "hdc, or another of `netoffload train --list`.")
    data: str | None = _data()
    data_dir: Path | None = setting(None, DATA_DIR_HELP)
    nodes: int = setting(4, "Ranks, one per node.", "--nodes", "-n")
    rate: str = setting("1gbit", RATE_HELP)
    steps: int = setting(60, "Training steps per contender; the first 3 are not timed.")
    batch: int = setting(25, "Samples per rank and step.")
    optimizer: str | None = setting(None, OPTIMIZER_HELP, shown_default=False)
    learning_rate: float | None = setting(None, "Initial rate. Default: the model's own.")
    repeat: int = setting(3, "Rounds into which the steps are cut.", least=1)
    what: tuple[str, ...] = setting(
        (), f"{', '.join(DDP_HOOKS)}; repeat for several. Default: the first ten; with --until, {', '.join(RACERS)}."
    )
    until: float | None = setting(None, "Train until this accuracy on the test set, 0..1.")
    every: int = setting(20, "Steps between two measurements of the accuracy.", least=1)
    factors: str = setting("0.5,1,2", "Learning rates to try, as multiples of the initial one, with commas.")
    bound: int = _bound()
    seed: int = _seed("weights, batches, and the digits' test set")
    figure: Path | None = setting(None, "Also draw the table into this file: .png, .svg, .pdf.")


@dataclass(frozen=True)
class EightBitSettings(Settings):
    """Measure the 8-bit types' errors beside Table 2 of their paper.

    nearest is what the compressor does. search is the binary search that the
    paper's figures suggest; it misses the nearest number one time in four.
    The paper prints its mean squared error as mean absolute error.

    Example: netoffload bench eight-bit --sample 25000000 --json
    """

    experiment: ClassVar = "netoffload.lab.bench.eight_bit:EightBit"
    sample: int = setting(1_000_000, "Numbers of each distribution; the paper's: 25000000.", least=1)
    seed: int = _seed("the numbers")


@dataclass(frozen=True)
class NicBenchSettings(Settings):
    """Time TCP streams between two nodes: kernel alone, through NICs untagged and tagged.

    Untagged streams go once through the NICs' processes (bypass) and once
    past them (bypass_kernel: see the option --bypass of netoffload up).

    It first times streams and round trips over unshaped wires, then streams
    at each rate, beside OpenVPN if it is installed. Every octet that arrives
    is compared before a time is reported. The ratio counts octets on the
    wire, with headers. The tunnel runs over wires without NICs. If a rate
    cannot be measured, the results of the others are reported.

    Example: netoffload bench nic --rates 1gbit --peers openvpn-lz4 --json
    """

    experiment: ClassVar = "netoffload.lab.bench.nic:NicBench"
    rates: str = setting("100mbit,1gbit", "Rates of the shaped links, with commas.")
    size: str = setting("2GB", "Octets of a stream over unshaped wires.")
    seconds: float = setting(3.0, "Time of a stream over a shaped link.", least=0.1)
    repeat: int = setting(3, "Timed rounds; one more warms up.", least=1)
    peers: str = setting(PEERS_ALL, "Tunnels to compare with, with commas; or all, none.")
    mtu: int = _mtu()
    gradients: str = setting(GRADIENTS, "gaussian:STANDARD_DEVIATION, or a float32 .npy file.")
    file: str = setting("", "Any file, whose octets streams carry instead, with a codec that gives back every bit.")
    bound: int = _bound()
    codec: str = _codec()
    round_trips: int = setting(2000, "Timed round trips per round.", least=1)
    seed: int = _seed("gaussian gradients")


@dataclass(frozen=True)
class OverlapSettings(Settings):
    """Time steps that compute buckets and sum them: one after the other, and at the same time.

    A step is timed four ways: computing alone, communicating alone
    (Allreduce_comp), all computing and then all communicating (serial), and
    each bucket on its way (Iallreduce_comp) while the next one is computed
    (overlapped). The sums are compared before a time is reported.

    overlap = (serial - overlapped) / min(compute, communication): 1 if all of
    the shorter part disappears behind the longer one. numpy releases the
    interpreter lock, python is a loop that holds it, sleep needs no core.
    Ranks, and NICs, share this machine's cores.

    Example: netoffload bench overlap --nodes 2 --rate 1gbit --buckets 8 --size 4MB --json

    Example: netoffload bench overlap --nic --rate 100mbit --compute python
    """

    experiment: ClassVar = "netoffload.lab.bench.overlap:Overlap"
    nodes: int = setting(2, "Ranks, one per node.", "--nodes", "-n", least=2)
    rate: str = setting("1gbit", "Rate of every link: 100mbit, 1gbit.")
    buckets: int = setting(8, "Vectors that a step computes and sums.", least=1)
    size: str = setting("4MB", "Octets of each vector: 4MB, 64KiB.")
    compute: tuple[str, ...] = setting(COMPUTE, f"{', '.join(COMPUTE)}; repeat for several; default: all.")
    compute_ms: float | None = setting(None, "Computation per bucket; default: as long as communicating one takes.")
    nic: bool = setting(False, "Through emulated NICs, or over plain wires.", "--nic/--no-nic")
    repeat: int = setting(5, "Timed rounds.", least=1)
    gradients: str = _values()
    bound: int = _bound()
    codec: str = _codec()
    seed: int = _seed("the values")


@dataclass(frozen=True)
class ThresholdsSettings(Settings):
    """Train in this process with many thresholds for wgt, bgt and qgt, and say which is best.

    It needs no NIC, no link and no root: ranks are threads. The best threshold
    sends least among those within one point of the highest accuracy.

    Example: netoffload bench thresholds hdc --data mnist --data-dir DIR --learning-rate 0.05
    """

    experiment: ClassVar = "netoffload.lab.bench.thresholds:Thresholds"
    model: str = setting(MISSING, MODEL_HELP, argument="", shown_default=False)
    data: str | None = _data()
    data_dir: Path | None = setting(None, DATA_DIR_HELP)
    nodes: int = setting(4, "Workers.", "--nodes", "-n", least=1)
    iterations: int = setting(64, "Batches per worker.")
    learning_rate: float | None = setting(None, LEARNING_RATE_HELP)
    seed: int = _seed("weights and batches")
    threshold: tuple[float, ...] = setting((), "Try this threshold; repeat for several; default: 0.0001 to 0.2.")
    out: Path | None = setting(None, "Append the result to this file of JSON lines.")


def training_of(asked: Any, **more: Any) -> TrainSettings:
    """Return the settings of a training, from fields of the same names, and others; its method may be of no use."""
    from netoffload.lab.training.config import TrainSettings

    same = {field.name: getattr(asked, field.name) for field in fields(TrainSettings) if hasattr(asked, field.name)}
    if same.get("data_dir") is not None:
        same["data_dir"] = str(same["data_dir"])
    return TrainSettings(**{"method": "inc", **same, **more})


@dataclass(frozen=True)
class AdviseSettings(Settings):
    """Say which exchange pays on a network, by how much, and with what error.

    It measures the codecs on this CPU, a model's computing, and the network
    between the ranks that a launcher started; without a launcher, give --rate.
    Then it predicts the time of a step with every exchange. --try also times
    four of them between the ranks, or between threads of this process. Your
    script runs unchanged, as one rank alone, for --steps steps of its
    optimizer.

    The prediction leaves out headers, computing that goes on while gradients
    are on their way, and what an error does to learning.

    Example: netoffload advise --rate 1gbit --delay 0.1 -n 8

    Example: netoffload advise --rate 100mbit --gradients captured.npy --compute 40

    Example: netoffload advise --rate 1gbit -- train.py --batch-size 64

    Example: torchrun --nnodes 2 --node-rank N --master-addr HOST -m netoffload advise --try

    Example: netoffload run -n 4 --rate 1gbit --no-nic -- -m netoffload advise --model cnn
    """

    experiment: ClassVar = "netoffload.lab.bench.advice:Adviser"
    script: tuple[str, ...] = setting((), "Your training script, instead of a model.", argument="[-- SCRIPT [ARGS]...]")
    rate: str | None = setting(None, "Rate of every link: 100mbit, 1gbit. Default: measured.")
    delay: float = setting(0.0, "Delay of every link, one way, in ms; with --rate.")
    nodes: int | None = setting(None, "Ranks, without a launcher. Default: 4.", "--nodes", "-n")
    model: str = setting("hdc", "Any of 'netoffload train --list'.")
    gradients: Path | None = setting(None, "Gradients from this float32 .npy file, one per row.")
    compute: float | None = setting(None, "Computing time of a step, in ms. Default: measured; 0 with --gradients.")
    batch: int = setting(25, "Samples per rank and step.")
    steps: int | None = setting(None, "Training steps: 50; 20 of a script.", least=1)
    bound: int = _bound()
    error: float = setting(0.1, "Largest relative error of an exchange to recommend.")
    is_tried: bool = setting(False, "Also time the plain ring and the inline rings.", "--try")


EXPERIMENTS: Final[dict[str, type[Settings]]] = {
    "allreduce": AllreduceSettings,
    "codec": CodecSettings,
    "compressors": CompressorsSettings,
    "ddp": DdpSettings,
    "eight-bit": EightBitSettings,
    "nic": NicBenchSettings,
    "overlap": OverlapSettings,
    "thresholds": ThresholdsSettings,
}
"""The experiments of ``netoffload bench`` by name, in the order of its help."""
