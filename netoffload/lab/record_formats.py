"""The format number of all records, and the functions that bring an older record to the next format.

To change a record's keys, raise :data:`FORMAT` and add to :data:`RUN` or :data:`STEP` the function that brings a record
of the last format to the new one. An older record goes through all these functions in turn. A value that the older
format does not have becomes ``unknown``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from netoffload.errors import UsageError
from netoffload.machine.environment import UNKNOWN

FORMAT: Final = 6
"""Version of the record's keys; a newer one is refused."""


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


def _to_format_4(record: dict[str, Any]) -> None:
    """In format 3 only NICs compress tagged data."""
    _add(record["configuration"], offload="nic")


def _to_format_5(record: dict[str, Any]) -> None:
    """In format 4 all runs use momentum SGD with steps, whole models and one bucket; parts and memory are unknown."""
    asked = record["configuration"]
    optimizer = f"sgd:momentum={asked['momentum']},weight_decay={asked['weight_decay']},nesterov=false"
    schedule = f"step:warmup=0,divisor={asked['learning_rate_divisor']},interval={asked['learning_rate_interval']}"
    _add(asked, optimizer=optimizer, schedule=schedule, clip_norm=None, bucket_mb=0.0)
    _add(asked, parallel="data", activations="float32", sub_batches=1)
    _add(record["timing"], forward_s=None, backward_s=None, update_s=None, sum_s=None, hidden_s=None)
    _add(record, first_iteration=0, timed_iterations=asked["iterations"], peak_memory_octets=None)


def _to_format_6(record: dict[str, Any]) -> None:
    """In format 5 a record has only the last loss."""
    _add(record["learning"], loss_after={})


def _add(place: dict[str, Any], **new: object) -> None:
    if known := sorted(place.keys() & new.keys()):
        raise KeyError(f"it has {', '.join(known)} of a later format")
    place.update(new)


Migrations = dict[int, Callable[[dict[str, Any]], None]]
"""By format: the function that brings a record of it to the next format, in place; none: the keys stay."""

RUN: Final[Migrations] = {
    1: _to_format_2,
    2: _to_format_3,
    3: _to_format_4,
    4: _to_format_5,
    5: _to_format_6,
}
"""Records of training runs."""
assert list(RUN) == list(range(1, FORMAT))

STEP: Final[Migrations] = {}
"""Records of a reproduction's steps: all formats have the same keys."""


def migrated(record: dict[str, Any], where: str, migrations: Migrations) -> dict[str, Any]:
    """Bring a record of an older format to :data:`FORMAT`, in place, and return it."""
    written = record.get("format")
    if type(written) is not int or written < 1:
        raise UsageError(f"{where} is not a record of format 1 to {FORMAT}")
    if written > FORMAT:
        raise UsageError(f"{where} has format {written}; this version reads 1 to {FORMAT}: update netoffload")
    try:
        for step in range(written, FORMAT):
            if step in migrations:
                migrations[step](record)
    except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise UsageError(f"{where} is not a record of format {written}: {error!r}") from error
    return record | {"format": FORMAT}
