"""The formulas of an exchange's time, against simulated schedules; and ``netoffload model scaling``."""

import json
from pathlib import Path

import pytest

from netoffload.lab.models import exchange, simulation
from netoffload.lab.models.exchange import Link
from netoffload.lab.models.settings import node_counts, rates_bps
from tests.shared.commands import netoffload, refusal

LINK = Link.of_rate(1e9, alpha_s=50e-6, gamma_s=2e-10)


@pytest.mark.parametrize("nodes", [4, 30, 64])
def test_formulas_agree_with_the_schedules_in_simulated_time(nodes: int) -> None:
    rows = simulation.checked(LINK, 4_000_000, lambda _said, _share=None: None, [nodes])
    assert {row.way for row in rows} == {"ring", "ring, NICs", "rings of rings", "aggregator"}
    assert max(abs(row.off) for row in rows) < 0.05


def test_what_the_formulas_say_of_scale() -> None:
    octets = 233e6
    assert exchange.aggregator_s(LINK, 8, octets) > 1.8 * exchange.aggregator_s(LINK, 4, octets)
    assert exchange.ring_s(LINK, 8, octets) < 1.2 * exchange.ring_s(LINK, 4, octets)
    rings_s = exchange.rings_of_rings_s(LINK, LINK, 4, 4, octets)
    assert rings_s == pytest.approx(exchange.ring_s(LINK, 16, octets), rel=1e-3)  # as many octets, fewer messages
    members = exchange.best_members(LINK, LINK, 10_000, 1e6)
    assert 1 < members < 10_000
    flat = exchange.ring_s(LINK, 10_000, 1e6)
    assert exchange.rings_of_rings_s(LINK, LINK, 10_000 // members, members, 1e6) < flat / 10
    assert exchange.latency_bound_nodes(LINK, 1e6) == pytest.approx(160)


def test_coded_links_are_as_fast_as_wire_or_coder() -> None:
    assert LINK.coded(8).beta_s == LINK.beta_s / 8
    assert LINK.coded(8, octets_per_s=2e8).beta_s == 1 / 2e8
    assert LINK.coded(8).alpha_s == LINK.alpha_s


def test_ranges_have_both_ends() -> None:
    assert node_counts("4..40") == (4, 8, 16, 32, 40)
    assert node_counts("4,6") == (4, 6)
    assert rates_bps("1gbit..40gbit") == tuple(int(gbit * 1e9) for gbit in (1, 2.5, 10, 25, 40))
    assert rates_bps("100mbit") == (100_000_000,)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--nodes 1", "1 nodes exchange nothing"),
        ("--nodes many", "'many'"),
        ("--rate 2000gbit", "outside 1mbit"),
        ("--nodes 16..4", "write 4..16"),
        ("--rate 10gbit..1gbit", "write 1gbit..10gbit"),
    ],
)
def test_what_is_no_cluster_is_refused(words: str, message: str) -> None:
    assert message in refusal("model", "scaling", *words.split())


@pytest.mark.slow
def test_json_and_figure(tmp_path: Path) -> None:
    figure = tmp_path / "scaling.svg"
    words = ["model", "scaling", "--nodes", "4,4096", "--rate", "1gbit,400gbit", "--size", "1MB"]
    found = json.loads(netoffload(*words, "--json", "--figure", str(figure)).stdout)
    rows = {(row["rate_bps"], row["nodes"]): row for row in found["rows"]}
    assert rows[10**9, 4096]["times_s"]["ring"] > rows[10**9, 4096]["times_s"]["rings of rings"]
    assert rows[10**9, 4]["nic_gain"] > 5 > 1.2 > rows[4 * 10**11, 4096]["nic_gain"]
    assert "What compressing NICs gain" in figure.read_text()
