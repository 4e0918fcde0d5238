"""The formulas of an exchange's time, against simulated schedules and each other."""

import pytest

from netoffload.lab.models import exchange, simulation
from netoffload.lab.models.exchange import Link

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
