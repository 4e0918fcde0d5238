"""The parts of all experiments: options, turns, contenders that may fail, and findings that become JSON."""

import inspect
import json
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from operator import attrgetter
from typing import Annotated

import pytest
import typer

from netoffload.errors import RunError, UsageError
from netoffload.lab.bench.experiment import Contender, take_turns
from netoffload.lab.bench.settings import EXPERIMENTS, AdviseSettings, parse_vector_octets
from netoffload.lab.cli.bench import command_of
from netoffload.lab.declared import Column, Finding, Settings, Table, left_out, setting, words
from netoffload.lab.models.settings import MODELS
from netoffload.lab.results import Spread
from tests.shared.commands import netoffload, refusal


def test_contenders_take_turns_and_warm_ups_leave_no_sample() -> None:
    first, second = (Contender(name, lambda number: number) for name in ("first", "second"))
    turns: list[tuple[str, int]] = []
    take_turns([first, second], 2, warm_ups=1, on_turn=lambda name, number: turns.append((name, number)))
    assert turns == [(name, number) for number in (0, 1, 2) for name in ("first", "second")]
    assert first.samples == second.samples == [1, 2]


def fails_in_round_2(number: int) -> int:
    if number == 2:
        raise RunError("it stalled")
    return number


def test_a_contender_that_may_fail_ends_alone() -> None:
    fragile = Contender("fragile", fails_in_round_2, may_fail=True)
    other = Contender("other", lambda number: number)
    turns: list[str] = []
    take_turns([fragile, other], 3, on_turn=lambda name, _number: turns.append(name))
    assert turns == ["fragile", "other", "fragile", "other", "other"]
    assert (fragile.failed, fragile.samples) == ("it stalled", [])
    assert (other.failed, other.samples) == (None, [1, 2, 3])


def test_a_contender_that_may_not_fail_ends_all() -> None:
    strict = Contender("strict", fails_in_round_2)
    with pytest.raises(RunError, match="it stalled"):
        take_turns([strict], 3)
    assert strict.samples == [1]


@dataclass(frozen=True)
class Inner(Finding):
    spread: Spread

    def to_record(self) -> dict[str, object]:
        return {"own": self.spread.median}


@dataclass(frozen=True)
class Outer(Finding):
    rows: list[Inner]
    by_name: dict[str, Spread]
    times_s: tuple[float, ...]


def test_findings_become_json_each_in_its_own_way() -> None:
    spread = Spread.of([1.0, 2.0, 3.0])
    record = Outer([Inner(spread)], {"a": spread}, (0.5,)).to_record()
    assert json.loads(json.dumps(record)) == record
    assert record["rows"] == [{"own": 2.0}]
    assert record["by_name"]["a"]["maximum"] == 3.0
    assert record["times_s"] == [0.5]


@dataclass(frozen=True)
class Measured(Finding):
    name: Annotated[str, words("who")]
    times_s: Annotated[
        Spread, Column("ms", ".1f", of=lambda one: one.median * 1e3), Column("max", "g", of=attrgetter("maximum"))
    ]
    kept: int
    octets: Annotated[float | None, Column("MB", ".2f", 1e6)]
    reason: str | None = left_out()


def test_columns_of_findings_make_a_table() -> None:
    spread = Spread.of([0.001, 0.002, 0.003])
    rows = [Measured("ring", spread, 7, 2_500_000), Measured("star", spread, 8, None, "it stalled")]
    table = Table.of(Measured, rows, "Times")
    assert [column.heading for column in table.columns] == ["who", "ms", "max", "MB"]
    assert table.rows == [["ring", "2.0", "0.003", "2.50"], ["star", "2.0", "0.003", "-"]]
    assert table.text() == "Times\nwho    ms    max    MB\nring  2.0  0.003  2.50\nstar  2.0  0.003     -"
    assert Table.of(Measured, rows, None, only="octets name").rows == [["2.50", "ring"], ["-", "star"]]
    assert Table.of(Measured, [object()], None).rows == [["-"] * 4]
    assert ["reason" in row.to_record() for row in rows] == [False, True]


@dataclass(frozen=True)
class OwnSettings(Settings):
    """Do something.

    Example: netoffload own
    """

    experiment = "own:Own"
    model: str = setting(MISSING, "The model.", argument="")
    nodes: tuple[int, ...] = setting((4,), "Nodes.", "--nodes", "-n")
    repeat: int = setting(3, "Rounds.", least=1)


def test_settings_make_the_options_of_a_command() -> None:
    app = typer.Typer()
    app.command("own")(command_of(OwnSettings))
    made = typer.main.get_command(app)
    assert (made.help or "").startswith("Do something.")
    assert {one.name: one.opts for one in made.params} == {
        "model": ["model"],
        "nodes": ["--nodes", "-n"],
        "repeat": ["--repeat"],
        "as_json": ["--json"],
        "install_completion": ["--install-completion"],
        "show_completion": ["--show-completion"],
    }
    with pytest.raises(SystemExit):
        made(["m", "--repeat", "0"])


@pytest.mark.parametrize("settings", [*EXPERIMENTS.values(), *MODELS.values(), AdviseSettings])
def test_every_experiment_measures_what_its_settings_name(settings: type[Settings]) -> None:
    module, _, name = settings.experiment.partition(":")
    kind = getattr(import_module(module), name)
    annotation = next(iter(inspect.signature(kind).parameters.values())).annotation
    assert annotation in (settings, settings.__name__)  # a name where the import is for annotations only
    assert callable(kind.measure)
    assert callable(kind.findings)
    assert all(field.metadata["setting"].help for field in fields(settings))


def test_a_size_is_whole_floats() -> None:
    assert parse_vector_octets("4099") == 4096
    with pytest.raises(UsageError, match="less than one float32"):
        parse_vector_octets("3")


REFUSED = [
    ("allreduce --what ring --what nccl", "contender 'nccl' is unknown"),
    ("allreduce --nodes 1", "1 nodes exchange nothing"),
    ("allreduce --size 3", "less than one float32"),
    ("allreduce --rate fast", "rate 'fast'"),
    ("allreduce --gradients uniform:1", "gradients 'uniform:1'"),
    ("allreduce --bound 17", "bound 17 is outside"),
    ("codec --size 4096 --codec zip", "codec 'zip' is unknown"),
    ("codec --size 4096 --kernel gpu", "'gpu' is unknown"),
    ("codec --size 3", "less than one float32"),
    ("codec --size 4096 --data noise", "'noise' are unknown"),
    ("codec --size 4096 --gradients /nonexistent.npy", "cannot read gradients"),
    ("compressors --compressor zip", "compressor 'zip' is unknown"),
    ("compressors --compressor qsgd:norm=l3", "norm 'l3' is unknown"),
    ("compressors --size 8KB --layers 1,2", "the layers have 3 floats together, the vector 2000"),
    ("compressors --size 8KB --layers many", "layers 'many' are no lengths"),
    ("compressors --size 3B", "size"),
    ("compressors --data uniform", "gradients 'uniform' are unknown"),
    ("ddp --what nccl", "contender 'nccl' is unknown"),
    ("ddp --nodes 1", "1 nodes exchange nothing"),
    ("ddp --steps 5 --repeat 3", "5 steps are too few"),
    ("ddp --bound 17", "outside 1..16"),
    ("ddp --model resnet", "model 'resnet' is unknown"),
    ("ddp --data mnist", "mnist needs --data-dir"),
    ("nic --peers wireguard", "peer"),
    ("nic --rates fast", "not a number with a unit"),
    ("nic --rates ,", "--rates names no rate"),
    ("nic --size 3", "one float32"),
    ("nic --bound 17", "outside 1..16"),
    ("nic --gradients gaussian:2", "standard deviation"),
    ("nic --gradients no-such-file.npy", "no-such-file.npy"),
    ("overlap --compute java", "compute 'java' is unknown"),
    ("overlap --rate fast", "rate 'fast'"),
    ("overlap --size 3", "one float32"),
    ("overlap --compute-ms 0", "is no time"),
    ("overlap --compute-ms nan", "is no time"),
    ("overlap --compute-ms inf", "is no time"),
    ("overlap --nic --bound 17", "outside 1..16"),
    ("overlap --gradients gaussian:2", "standard deviation"),
]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_help_has_an_example(name: str) -> None:
    said = netoffload("bench", name, "--help").stdout
    assert f"Example: netoffload bench {name}" in said


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[words for words, _ in REFUSED])
def test_what_cannot_be_measured_is_refused(words: str, message: str) -> None:
    assert message in refusal("bench", *words.split())
