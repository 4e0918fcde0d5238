"""The home of records: what a training run, or a step of a paper's reproduction, leaves.

A record is one line of JSON; a file of records grows by appending. One run is one :class:`Record`: its configuration,
its versions and machine, its measurements. Times are seconds, sizes octets, rates bits per second; totals are over the
timed iterations of the run. A field that is per iteration says so. One step of ``reproduce`` is one
:class:`StepRecord`: its value as JSON, and its origin.

All records have one format number. To change the keys, raise :data:`FORMAT` and add the function that brings a record
of the last format to the new one; a value that the older format does not have becomes ``unknown``. After that, reading
is strict: a key that is unknown, missing or of the wrong type raises a :class:`~netoffload.errors.UsageError` with the
path to the key. A partly read record would give wrong figures.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import statistics
import tempfile
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from netoffload import log
from netoffload.errors import NetOffloadError, UsageError
from netoffload.lab.machine import UNKNOWN

T = TypeVar("T")

FORMAT: Final = 8  # version of the records' keys; a newer one is refused
ROOM_OCTETS: Final = 256 * 1024  # room for records and a report with its figure


@dataclasses.dataclass(frozen=True)
class Configuration:
    """The configuration of a run; enough to repeat it."""

    model: str
    exchange: str
    nodes: int
    iterations: int
    seed: int
    batch: int
    learning_rate: float
    learning_rate_divisor: float
    learning_rate_interval: int
    momentum: float
    weight_decay: float
    loss_scale: float
    data: str
    parameters: int
    codec: str | None
    bound_k: int | None
    packing: str | None  # how NICs fill frames; None: a run without NICs, or in which ranks compress by themselves
    rate_bps: int | None
    mtu: int
    error_feedback: bool
    sharing: str
    offload: str  # which process compressed the tagged data: :class:`~netoffload.config.Offload`
    optimizer: str
    """Name and parameters, as ``--optimizer`` takes them. ``momentum`` and ``weight_decay`` are 0 if it has none."""
    schedule: str  # name and parameters; if it is not ``step``, the divisor is 1 and the interval the run's iterations
    clip_norm: float | None  # the largest norm of the mean gradient; None: no limit
    bucket_mb: float = 0.0
    """Size of the buckets in which gradients are summed during backward, 10^6 octets; 0: all at once."""
    parallel: str = "data"
    activations: str = "float32"
    sub_batches: int = 1
    """``parallel`` is the part of the model that a worker has, ``activations`` the type in which activations and errors
    travel, ``sub_batches`` in how many pieces."""

    @property
    def has_nics(self) -> bool:
        """Whether every node had a NIC."""
        return self.packing is not None


@dataclasses.dataclass(frozen=True)
class Versions:
    """Versions and machine."""

    netoffload: str
    python: str
    numpy: str
    torch: str
    mpi: str
    kernel: str  # Linux
    codec_kernel: str  # the variant of ``netoffload.codec.kernels`` in use
    cpu: str
    cores: int
    machine: str  # tells machines apart: the start of a SHA-256 of the machine's identity, or ``unknown``

    @property
    def computer(self) -> str:
        """The machine in words."""
        return f"{self.machine}, {self.cores} cores of {self.cpu}"


@dataclasses.dataclass(frozen=True)
class Spread:
    """Median, quartiles and extremes of repeated measurements."""

    median: float
    quartile_low: float
    quartile_high: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Summarise at least one sample; quartiles are interpolated linearly."""
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive") if samples[1:] else 3 * [*samples]
        return cls(median, low, high, min(samples), max(samples))


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds per iteration, each the mean over the workers; None: unknown in an older format."""

    wall_s: Spread
    compute_s: Spread  # forward, backward and the update of the weights, wherever the update happens
    communicate_s: Spread  # the rest: wall = compute + communicate in every iteration
    forward_s: Spread | None = None
    backward_s: Spread | None = None
    update_s: Spread | None = None
    sum_s: Spread | None = None  # adding gradients, a part of ``communicate_s``
    hidden_s: Spread | None = None  # in which buckets travelled during backward, or activations during multiplications


@dataclasses.dataclass(frozen=True)
class NodeTraffic:
    """Octets and frames that a node sent on its wire, with all headers, counted by the qdisc that shapes the wire."""

    name: str
    tx_octets: int
    tx_frames: int


@dataclasses.dataclass(frozen=True)
class ClassCounts:
    """Floats by the number of bits they became (the tags of INCEPTIONN, Table III), summed over all NICs."""

    bits_0: int
    bits_8: int
    bits_16: int
    bits_32: int

    @property
    def total(self) -> int:
        """All floats that were compressed."""
        return self.bits_0 + self.bits_8 + self.bits_16 + self.bits_32


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Octets and frames on all wires, and the NICs' counts, in the timed iterations."""

    nodes: tuple[NodeTraffic, ...]
    raw_octets: int  # payload that NICs or ranks compressed, before compression; 0 in a run without compression
    payload_octets: int  # the same payload after compression
    blocks: int
    classes: ClassCounts
    codec_s: float
    """Time that the busiest NIC or rank spent compressing and decompressing; it overlaps with communication."""
    drops: dict[str, int]  # frames that NICs dropped, by reason; reasons that did not occur are left out
    crossed_raw_octets: int | None = None
    """Tagged octets that nobody compressed: a connection's first ones, and what is no float or would not shrink."""

    @property
    def wire_octets(self) -> int:
        """Octets sent by all nodes."""
        return sum(node.tx_octets for node in self.nodes)

    @property
    def wire_frames(self) -> int:
        """Frames sent by all nodes."""
        return sum(node.tx_frames for node in self.nodes)

    @property
    def ratio(self) -> float:
        """Payload octets before compression over after; 1 where nothing was compressed."""
        return self.raw_octets / self.payload_octets if self.payload_octets else 1.0


@dataclasses.dataclass(frozen=True)
class Learning:
    """Accuracy on the test set, 0..1, at the end and by number of iterations; worker 0's last loss, None if not finite.

    ``loss_after`` is the mean of worker 0's losses since the accuracy before, if the mean is finite.
    """

    accuracy: float
    accuracy_after: dict[str, float]
    final_loss: float | None
    loss_after: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Record:
    """One training run."""

    format: int
    started: str  # UTC, ISO 8601
    configuration: Configuration
    versions: Versions
    rate_bps_measured: float | None
    timing: Timing
    traffic: Traffic
    compression_efficiency: float
    """Octets of a worker's vectors after compression by host or NIC, over the octets of one float32 gradient per
    iteration (Jiang and Agrawal, 5.1: the share of FULLSGD's data)."""
    learning: Learning
    parameter_sha256: str  # digest of the final parameters, which are the same on every worker of a run with a record
    first_iteration: int
    timed_iterations: int
    """``first_iteration`` counts the iterations of earlier commands, ``timed_iterations`` the timed ones behind them (a
    run may end at an accuracy)."""
    peak_memory_octets: tuple[int, ...] | None = None
    """The most resident memory of each rank, libraries included; None: unknown in an older format."""

    @property
    def iterations_done(self) -> int:
        """Iterations of this command and earlier ones."""
        return self.first_iteration + self.timed_iterations


def to_line(record: Record) -> str:
    """Write a record as one line of JSON, without the newline."""
    return json.dumps(dataclasses.asdict(record), allow_nan=False, sort_keys=False)


def from_line(line: str, where: str = "record") -> Record:
    """Read a line that :func:`to_line` of this version or an older one wrote."""
    return _read_line(Record, line, where)


def _read_line(kind: type[T], line: str, where: str) -> T:
    """Read a line of :class:`Record` or :class:`StepRecord`."""
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{where} is not a record of format 1 to {FORMAT}")
    record = decode_dataclass(kind, _migrated(value, where, RUN if kind is Record else STEP), where)
    if isinstance(record, Record) and not (record.timed_iterations > 0 and record.timing.wall_s.median > 0):
        said = f"{record.timed_iterations} timed iterations of {record.timing.wall_s.median} s"
        raise UsageError(f"{where} is no record of a run: it has {said}")
    if isinstance(record, Record) and (not record.traffic.nodes or record.peak_memory_octets == ()):
        raise UsageError(f"{where} is no record of a run: it has no nodes or no ranks")
    return record


def append_records(path: Path, records: Iterable[Record]) -> None:
    """Append records to a file of JSON lines, which is made if it does not exist."""
    _append(path, "".join(to_line(record) + "\n" for record in records), path)


def _append(path: Path, lines: str, named: Path) -> None:
    """Append lines of JSON; of a last line without an end only what is whole stays. Errors name ``named``."""
    try:
        before = path.read_bytes() if path.exists() else b""
        whole = before.rfind(b"\n") + 1
        if _is_json(before[whole:]):
            lines = "\n" + lines
        elif whole < len(before):  # its program was killed
            os.truncate(path, whole)
        with path.open("a", encoding="utf-8") as file:
            file.write(lines)
    except OSError as error:
        raise UsageError(f"cannot write records to {named}: {error.strerror}") from error


def _is_json(octets: bytes) -> bool:
    try:
        json.loads(octets)
    except ValueError:
        return False
    return True


def check_writable(path: Path) -> None:
    """Refuse a file that cannot be written, before a long command begins; leave no new file behind."""
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: {path.parent} is not a folder")
    is_new = not path.exists()
    try:
        path.open("a").close()  # a test of permissions is not enough: root passes it on read-only file systems too
        if is_new:
            path.unlink()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    try:  # a full disk still makes empty files
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            probe.write(bytes(ROOM_OCTETS))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):  # others are about the folder, not the file
            raise UsageError(f"cannot write {path}: {error.strerror}") from error


def check_figure(path: Path) -> None:
    """Refuse a file that no figure can be drawn into, before a long command begins."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UsageError(f"cannot draw into {path}: the name of a figure ends in .png, .svg or .pdf")
    check_writable(path)


def read_records(path: Path) -> list[Record]:
    """Read a file of JSON lines; empty lines are skipped, and a last one that is incomplete."""
    lines = read_lines(path)
    records = [from_line(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not records:
        raise UsageError(f"{path} has no record")
    return records


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file of records, without a last one whose program was killed when it wrote it."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read records from {path}: {getattr(error, 'strerror', None) or error}") from error
    if _is_json(lines[-1].encode()):
        return lines
    if lines[-1].strip():
        log.say("cut_record", f"{path}: its last record was cut, and is left out", level="warning", path=str(path))
    return lines[:-1]


SUFFIX: Final = ".jsonl"


@dataclasses.dataclass(frozen=True)
class StepRecord:
    """One measurement for a paper and its origin; lines of a quick run do not count for a full one."""

    format: int
    item: str
    step: str
    effort: str
    started: str
    wall_s: float
    load_1min: float | None  # of the machine, when it began
    command: str
    machine: str
    commit: str  # of the program's source; ``unknown`` if that is no checkout
    versions: dict[str, str]
    settings: tuple[str, ...]  # how it trained in words, a text for each kind of run
    value: Any


def steps_path(folder: Path, item: str) -> Path:
    """Return the file of an item's steps."""
    return folder / f"{item}{SUFFIX}"


def append_step(folder: Path, record: StepRecord) -> None:
    """Append a record to its item's file; an incomplete last line is replaced."""
    line = json.dumps(dataclasses.asdict(record), allow_nan=False) + "\n"
    _append(steps_path(folder, record.item), line, folder)


def read_steps(folder: Path, item: str) -> dict[str, StepRecord]:
    """Return the records of an item by step, the last one of each step; without a file there are none.

    A last line that is incomplete, because its program was killed, is left out.
    """
    path = steps_path(folder, item)
    if not path.exists():
        return {}
    lines = read_lines(path)
    found = (_read_line(StepRecord, line, f"{path}:{number}") for number, line in enumerate(lines, 1))
    return {record.step: record for record in found}


def write_file(path: Path, value: Any) -> None:
    """Write a dataclass as one object of JSON."""
    path.write_text(json.dumps(dataclasses.asdict(value), allow_nan=False, indent=1), encoding="utf-8")


def read_file(kind: type[T], path: Path, says: str = "", error: type[NetOffloadError] = UsageError) -> T:
    """Read what :func:`write_file` wrote; ``says`` and ``error`` are for a file that is missing, or is no JSON."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as reason:
        raise error(f"{says or f'cannot read {path}'}: {reason}") from reason
    return decode_dataclass(kind, value, str(path))


def decode_dataclass(kind: type[T], value: object, where: str) -> T:
    """Build a dataclass from JSON's types, strictly: nested dataclasses, tuples, dicts, unions with None, scalars."""
    if not isinstance(value, dict):
        raise UsageError(f"{where} is not an object")
    hints = typing.get_type_hints(kind)
    if unknown := sorted(value.keys() - hints.keys()):
        raise UsageError(f"{where} has unknown keys: {', '.join(map(str, unknown))}")
    if missing := sorted(hints.keys() - value.keys()):
        raise UsageError(f"{where} lacks keys: {', '.join(missing)}")
    return kind(**{name: _decode(hint, value[name], f"{where}.{name}") for name, hint in hints.items()})


def _decode(hint: Any, value: object, where: str) -> Any:
    if hint is Any:
        return value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        options = [option for option in arguments if option is not types.NoneType]
        return None if value is None else _decode(options[0], value, where)
    if dataclasses.is_dataclass(hint):
        return decode_dataclass(typing.cast("type[Any]", hint), value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_decode(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {str(key): _decode(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and type(value) is hint:
        return value
    raise UsageError(f"{where} is {value!r}, not {getattr(hint, '__name__', hint)}")


def _to_format_2(record: dict[str, Any]) -> None:
    """In format 1 all records are of INCEPTIONN's four methods: NICs carry whole vectors, without error feedback."""
    traffic = record["traffic"]
    raw, payload = traffic["raw_octets"], traffic["payload_octets"]
    _add(record, compression_efficiency=payload / raw if payload else 1.0)
    _add(record["configuration"], error_feedback=False)


def _to_format_3(record: dict[str, Any]) -> None:
    """A record of format 2 without ``sharing`` has partitioned data; ``codec_kernel`` may be missing too."""
    record["configuration"].setdefault("sharing", "partitioned")
    record["versions"].setdefault("codec_kernel", UNKNOWN)
    _add(record["versions"], machine=UNKNOWN)


def _to_format_5(record: dict[str, Any]) -> None:
    """In format 4 all runs use momentum SGD with steps, whole models and one bucket; parts and memory are unknown."""
    asked = record["configuration"]
    optimizer = f"sgd:momentum={asked['momentum']},weight_decay={asked['weight_decay']},nesterov=false"
    schedule = f"step:warmup=0,divisor={asked['learning_rate_divisor']},interval={asked['learning_rate_interval']}"
    _add(asked, optimizer=optimizer, schedule=schedule, clip_norm=None, bucket_mb=0.0)
    _add(asked, parallel="data", activations="float32", sub_batches=1)
    _add(record["timing"], forward_s=None, backward_s=None, update_s=None, sum_s=None, hidden_s=None)
    _add(record, first_iteration=0, timed_iterations=asked["iterations"], peak_memory_octets=None)


def _as_it_is(_record: dict[str, Any]) -> None:
    """This format has the keys of the last one."""


def _add(place: dict[str, Any], **new: object) -> None:
    if known := sorted(place.keys() & new.keys()):
        raise TypeError(f"it has {', '.join(known)} of a later format")
    place.update(new)


Migrations = tuple[Callable[[dict[str, Any]], None], ...]

RUN: Final[Migrations] = (
    *(_to_format_2, _to_format_3),
    lambda record: _add(record["configuration"], offload="nic"),  # in format 3 only NICs compress tagged data
    _to_format_5,
    lambda record: _add(record["learning"], loss_after={}),  # in format 5 a record has only the last loss
    _as_it_is,
    lambda record: _add(record["traffic"], crossed_raw_octets=None),  # up to format 7 nobody counts them
)
"""For records of training runs."""

STEP: Final[Migrations] = (
    *5 * (_as_it_is,),
    lambda record: _add(record, settings=[]),  # up to format 6 a step does not say how it trained
    _as_it_is,
)
"""For records of steps."""
assert len(RUN) == len(STEP) == FORMAT - 1


def _migrated(record: dict[str, Any], where: str, migrations: Migrations) -> dict[str, Any]:
    """Bring a record of an older format to :data:`FORMAT`."""
    written = record.get("format")
    if type(written) is not int or written < 1:
        raise UsageError(f"{where} is not a record of format 1 to {FORMAT}")
    if written > FORMAT:
        raise UsageError(f"{where} has format {written}; this version reads 1 to {FORMAT}: update netoffload")
    try:
        for migrate in migrations[written - 1 :]:
            migrate(record)
    except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise UsageError(f"{where} is not a record of format {written}: {reason}") from error
    return record | {"format": FORMAT}
