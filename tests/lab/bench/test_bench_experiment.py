"""The parts of all experiments: turns, warm-ups, contenders that may fail, and findings that become JSON."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from netoffload.errors import RunError, UsageError
from netoffload.lab import bench, cli
from netoffload.lab.bench.experiment import Contender, Finding, take_turns
from netoffload.lab.bench.vectors import parse_vector_octets
from netoffload.lab.cli.bench import bench_app
from netoffload.lab.results import Spread


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


def test_every_experiment_is_a_command_and_a_module() -> None:
    assert tuple(command.name for command in bench_app.registered_commands) == bench.EXPERIMENTS
    modules = {path.stem for path in Path(cli.__file__).parent.glob("bench_*.py")} - {"bench_command"}
    assert modules == {f"bench_{bench.module_name(name)}" for name in bench.EXPERIMENTS}
    for name in bench.EXPERIMENTS:
        source = Path(bench.__file__).with_name(f"{bench.module_name(name)}.py").read_text(encoding="utf-8")
        classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
        assert any("measure" in [getattr(part, "name", "") for part in one.body] for one in classes), name


def test_a_size_is_whole_floats() -> None:
    assert parse_vector_octets("4099") == 4096
    with pytest.raises(UsageError, match="less than one float32"):
        parse_vector_octets("3")
