"""One table or figure of a paper: its claims, the measurements that it takes, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from netoffload.papers.claim import Claim, Standing
from netoffload.reports import Panel

Json = Any
"""What a measurement leaves: dicts, lists, strings, numbers, None."""

HOW_TO_GET: Final[Mapping[str, str]] = {
    "mnist": "--mnist DIR with MNIST's four IDX files (http://yann.lecun.com/exdb/mnist or a mirror)",
    "cifar10": "--cifar10 FILE.npz or the folder of CIFAR-10's python batches (https://www.cs.toronto.edu/~kriz)",
}
"""By data set: what to say where it is missing."""


@dataclass(frozen=True)
class Setting:
    """What a measurement may use.

    Attributes:
        is_full: it may take hours; else minutes.
        folders: of data sets, by their names.
        say: takes what begins now.
    """

    is_full: bool
    folders: Mapping[str, Path] = field(default_factory=dict)
    say: Callable[[str], None] = lambda _said: None


@dataclass(frozen=True)
class Step:
    """One measurement, which is done once and kept.

    Attributes:
        key: unique within its item.
        measure: does it.
        data: the data sets that it needs.
        needs_root: it builds a testbed.
    """

    key: str
    measure: Callable[[Setting], Json]
    data: tuple[str, ...] = ()
    needs_root: bool = False


@dataclass(frozen=True)
class Reading:
    """What measurements say.

    Attributes:
        found: by claim.
        panels: of the figure, in the paper's form.
        remarks: sentences with what was measured, that explain differences.
    """

    found: Mapping[str, float]
    panels: Sequence[Panel]
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class Item:
    """A table or figure, or several that one measurement makes.

    Attributes:
        name: on the command line.
        title: what it shows.
        claims: what is printed.
        setting: how the paper's setting and ours differ: link, model, data, hardware.
        steps: the measurements, for a full run or a quick one.
        read: makes values and a figure of what the steps left, by their keys.
    """

    name: str
    title: str
    claims: Sequence[Claim]
    setting: str
    steps: Callable[[bool], Sequence[Step]]
    read: Callable[[Mapping[str, Json]], Reading]

    def __post_init__(self) -> None:
        """Hold that no claim stands twice, and that each says why it is not compared."""
        ids = [claim.id for claim in self.claims]
        assert len(set(ids)) == len(ids), f"{self.name}: a claim stands twice"
        lacking = [claim.id for claim in self.claims if claim.standing is not Standing.COMPARABLE and not claim.why]
        assert not [one for one in lacking if not self.setting], f"{self.name}: {lacking} say no reason"


@dataclass(frozen=True)
class Paper:
    """A paper.

    Attributes:
        name: before the names of its items.
        citation: authors, title, place.
        items: its tables and figures.
    """

    name: str
    citation: str
    items: Sequence[Item]


def bound(measure: Callable[..., Json], *arguments: Any) -> Callable[[Setting], Json]:
    """Return a measurement whose arguments are fixed."""
    return lambda setting: measure(setting, *arguments)
