"""One table or figure of a paper: its claims, its measurements, and how to read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from netoffload.lab.papers.claim import Claim, Standing
from netoffload.lab.reports import Panel

Json = Any
"""The result of a measurement: dicts, lists, strings, numbers, None."""

HOW_TO_GET: Final[Mapping[str, str]] = {
    "mnist": "--mnist DIR with MNIST's four IDX files (http://yann.lecun.com/exdb/mnist or a mirror)",
    "cifar10": "--cifar10 FILE.npz or the folder of CIFAR-10's python batches (https://www.cs.toronto.edu/~kriz)",
}
"""Hints for missing data sets, by name."""


@dataclass(frozen=True)
class Setting:
    """The time and the data that a measurement may use.

    Attributes:
        is_full: it may take hours; else minutes.
        say: called with the name of what begins.
    """

    is_full: bool
    folders: Mapping[str, Path] = field(default_factory=dict)
    say: Callable[[str], None] = lambda _said: None


@dataclass(frozen=True)
class Step:
    """One measurement, which is done once and recorded.

    Attributes:
        key: name, unique within its item.
        needs_root: whether it builds a testbed.
    """

    key: str
    measure: Callable[[Setting], Json]
    data: tuple[str, ...] = ()
    needs_root: bool = False


@dataclass(frozen=True)
class Reading:
    """The reading of an item's records.

    Attributes:
        found: our values, by claim.
        remarks: sentences with further figures, which explain differences.
    """

    found: Mapping[str, float]
    panels: Sequence[Panel]
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class Item:
    """A table or figure, or several that one measurement makes.

    Attributes:
        setting: how the paper's setting and ours differ: link, model, data, hardware.
        steps: returns the measurements of a full or a quick run.
        read: makes a reading from the results of the steps, by their keys.
    """

    name: str
    title: str
    claims: Sequence[Claim]
    setting: str
    steps: Callable[[bool], Sequence[Step]]
    read: Callable[[Mapping[str, Json]], Reading]

    def __post_init__(self) -> None:
        """Check that no claim appears twice, and that claims that are not compared have a reason."""
        ids = [claim.id for claim in self.claims]
        assert len(set(ids)) == len(ids), f"{self.name}: a claim stands twice"
        lacking = [claim.id for claim in self.claims if claim.standing is not Standing.COMPARABLE and not claim.why]
        assert not [one for one in lacking if not self.setting], f"{self.name}: {lacking} say no reason"


@dataclass(frozen=True)
class Paper:
    """A paper; the names of its items begin with its own."""

    name: str
    citation: str
    items: Sequence[Item]


def bound(measure: Callable[..., Json], *arguments: Any) -> Callable[[Setting], Json]:
    """Return a measurement whose arguments are fixed."""
    return lambda setting: measure(setting, *arguments)
