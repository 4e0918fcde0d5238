"""Records of older formats: what brings each to the next one.

A change of a record's keys raises :data:`FORMAT` and adds to :data:`MIGRATIONS` the function that brings a record of
the format before to the new one. An older one goes through all of them in turn. What it does not know becomes
``unknown``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from netoffload.errors import UsageError

FORMAT: Final = 6
"""Version of the record's keys; a newer one is refused."""

UNKNOWN: Final = "unknown"
"""What a record of an older format says where it does not know."""


def _to_format_2(record: dict[str, Any]) -> None:
    """Only INCEPTIONN's four methods had format 1; their vectors go through NICs whole, without error feedback."""
    traffic = record["traffic"]
    raw, payload = traffic["raw_octets"], traffic["payload_octets"]
    _add(record, compression_efficiency=payload / raw if payload else 1.0)
    _add(record["configuration"], error_feedback=False)


def _to_format_3(record: dict[str, Any]) -> None:
    """All training data was partitioned, until runs of format 2 began to say so; ``codec_kernel`` came as silently."""
    record["configuration"].setdefault("sharing", "partitioned")
    record["versions"].setdefault("codec_kernel", UNKNOWN)
    _add(record["versions"], machine=UNKNOWN)


def _to_format_4(record: dict[str, Any]) -> None:
    """Nobody but NICs compressed what is tagged."""
    _add(record["configuration"], offload="nic")


def _to_format_5(record: dict[str, Any]) -> None:
    """All ran momentum SGD with steps, whole, and summed gradients at once; parts and memory were not measured."""
    asked = record["configuration"]
    optimizer = f"sgd:momentum={asked['momentum']},weight_decay={asked['weight_decay']},nesterov=false"
    schedule = f"step:warmup=0,divisor={asked['learning_rate_divisor']},interval={asked['learning_rate_interval']}"
    _add(asked, optimizer=optimizer, schedule=schedule, clip_norm=None, bucket_mb=0.0)
    _add(asked, parallel="data", activations="float32", sub_batches=1)
    _add(record["timing"], forward_s=None, backward_s=None, update_s=None, sum_s=None, hidden_s=None)
    _add(record, first_iteration=0, timed_iterations=asked["iterations"], peak_memory_octets=None)


def _to_format_6(record: dict[str, Any]) -> None:
    """Losses on the way were not kept, nor how ranks compressed by themselves."""
    _add(record["learning"], loss_after={})


def _add(place: dict[str, Any], **new: object) -> None:
    if known := sorted(place.keys() & new.keys()):
        raise KeyError(f"it has {', '.join(known)} of a later format")
    place.update(new)


MIGRATIONS: Final[dict[int, Callable[[dict[str, Any]], None]]] = {
    1: _to_format_2,
    2: _to_format_3,
    3: _to_format_4,
    4: _to_format_5,
    5: _to_format_6,
}
"""By format: what brings a record of it to the next one, in place."""
assert list(MIGRATIONS) == list(range(1, FORMAT))


def migrated(record: dict[str, Any], where: str) -> dict[str, Any]:
    """Bring a record of an older format to :data:`FORMAT`, in place, and return it.

    Raises:
        UsageError: no format that was ever written, a newer one, or a key that its format has is missing.
    """
    written = record.get("format")
    if type(written) is not int or written < 1:
        raise UsageError(f"{where} is not a record of format 1 to {FORMAT}")
    if written > FORMAT:
        raise UsageError(f"{where} has format {written}; this version reads 1 to {FORMAT}: update netoffload")
    try:
        for step in range(written, FORMAT):
            MIGRATIONS[step](record)
    except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise UsageError(f"{where} is not a record of format {written}: {error!r}") from error
    return record | {"format": FORMAT}
