"""``netoffload model scaling``: its options and its output."""

import json
from pathlib import Path

import pytest

from netoffload.lab.models.settings import node_counts, rates_bps
from tests.shared.commands import netoffload, refusal


def test_ranges_have_both_ends() -> None:
    assert node_counts("4..40") == (4, 8, 16, 32, 40)
    assert node_counts("4,6") == (4, 6)
    assert rates_bps("1gbit..40gbit") == tuple(int(gbit * 1e9) for gbit in (1, 2.5, 10, 25, 40))
    assert rates_bps("100mbit") == (100_000_000,)


@pytest.mark.parametrize(
    ("words", "message"),
    [("--nodes 1", "1 nodes exchange nothing"), ("--nodes many", "'many'"), ("--rate 2000gbit", "outside 1mbit")],
)
def test_what_is_no_cluster_is_refused(words: str, message: str) -> None:
    assert message in refusal("model", "scaling", *words.split())


def test_json_and_figure(tmp_path: Path) -> None:
    figure = tmp_path / "scaling.svg"
    words = ["model", "scaling", "--nodes", "4,4096", "--rate", "1gbit,400gbit", "--size", "1MB"]
    found = json.loads(netoffload(*words, "--json", "--figure", str(figure)).stdout)
    rows = {(row["rate_bps"], row["nodes"]): row for row in found["rows"]}
    assert rows[10**9, 4096]["times_s"]["ring"] > rows[10**9, 4096]["times_s"]["rings of rings"]
    assert rows[10**9, 4]["nic_gain"] > 5 > 1.2 > rows[4 * 10**11, 4096]["nic_gain"]
    assert "What compressing NICs gain" in figure.read_text()
