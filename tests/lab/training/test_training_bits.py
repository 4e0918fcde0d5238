"""Every method leaves equal replicas, with the same bits as ever, on two and four workers."""

import functools
import json
import os
from pathlib import Path
from typing import Final

import pytest

from tests.shared.quick_cases import by_day
from tests.shared.training_bits import TABLE, alone, in_memory, in_processes, methods, runs

TABLES: Final[dict[str, dict[str, dict[str, str]]]] = json.loads(TABLE.read_text(encoding="utf-8"))
CASES: Final = [(nodes, name) for nodes in ("2", "4") for name in runs(int(nodes))]
QUICK: Final = [("2", "inc+c"), ("2", "terngrad"), ("2", "buckets"), ("2", "pqasgd:p=3"), ("4", "inc"), ("4", "wa")]
ALIKE: Final = ("22b-T", "24b-T", "8bit-static", "8bit-mantissa", "8bit-linear", "bf16", "snappy", "zstd", "zfp")
"""Methods that differ from another one by their compressor, which has its own tests."""
ON_LINKS: Final = ("wa+c", "inc", "inc+c", "psgd:p=3", "pqasgd:p=3", "terngrad", "qsgd:via=ring", "buckets", "hybrid")


def marks_of(nodes: str, name: str) -> list[pytest.MarkDecorator]:
    """By day four workers train by one method of each kind; two train by all that are not :data:`ALIKE`."""
    is_of_the_night = name in ALIKE or (nodes == "4" and name not in ON_LINKS)
    return [pytest.mark.night] * is_of_the_night + [pytest.mark.slow] * ((nodes, name) not in QUICK)


@functools.cache
def known() -> dict[str, dict[str, str]] | None:
    """Return the table of CPUs that round matrix products as this one does."""
    return TABLES.get(alone())


def test_the_tables_have_every_method() -> None:
    assert set(runs(4)) >= set(methods())
    for table in TABLES.values():
        assert {nodes: list(runs(int(nodes))) for nodes in ("2", "4")} == {nodes: list(table[nodes]) for nodes in table}


@pytest.mark.slow
@pytest.mark.parametrize("case", [pytest.param(case, marks=marks_of(*case)) for case in CASES], ids=" ".join)
def test_threads_end_with_equal_replicas_and_the_known_bits(case: tuple[str, str]) -> None:
    nodes, name = case
    found, table = in_memory(runs(int(nodes))[name]), known()
    assert table is None or found == table[nodes][name]


@pytest.mark.netns
@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("nodes", by_day(["2", "4"], ["2"]))
def test_processes_end_with_the_known_bits(nodes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        pytest.skip("network namespaces and TAP need root and /dev/net/tun")
    if (table := known()) is None:
        pytest.skip("this CPU rounds matrix products otherwise than those of training_bits.json")
    monkeypatch.setenv("NETOFFLOAD_STATE_DIR", str(tmp_path))
    assert in_processes(int(nodes), ON_LINKS) == {name: table[nodes][name] for name in ON_LINKS}
