"""The cost models against the figures that their papers print, and against simulated schedules."""

import math

import pytest

from netoffload.lab.models import simulation
from netoffload.lab.models.cost import eight_bit, exchange, terngrad
from netoffload.lab.models.cost.exchange import Link

ROUNDED_OTHERWISE = {("NervanaGPU", 512, 8), ("NervanaGPU", 1024, 8), ("convnet2", 2048, 8), ("convnet2", 12288, 32)}
"""Of Table 7: the printed formula gives these another last digit (39.2, 48.7, 62.9 and 2.14)."""


def digits(value: float, printed: str) -> str:
    return f"{value:.{len(printed.partition('.')[2])}f}"


@pytest.mark.parametrize("kernels", eight_bit.PRINTED_FOUR)
@pytest.mark.parametrize("bits", eight_bit.BITS)
def test_four_gpus_to_the_printed_digits(kernels: str, bits: int) -> None:
    printed = eight_bit.PRINTED_FOUR[kernels][eight_bit.BITS.index(bits)]
    total_ms = eight_bit.TOTAL_MS[kernels]
    assert digits(eight_bit.four_gpu_speedup(total_ms, eight_bit.PRINTED_PENALTY_MS[bits]), printed) == printed


def test_the_penalty_of_32_bits_is_not_the_sum_of_its_terms() -> None:
    assert eight_bit.fc_penalty_ms(8) == pytest.approx(eight_bit.PRINTED_PENALTY_MS[8])
    assert eight_bit.fc_penalty_ms(32) == pytest.approx(eight_bit.PRINTED_PENALTY_MS[32] + 0.2)


@pytest.mark.parametrize(("kernels", "sub_batch"), eight_bit.PRINTED_SPEEDUPS)
@pytest.mark.parametrize("bits", eight_bit.BITS)
def test_ninety_six_gpus_to_the_printed_digits(kernels: str, sub_batch: int, bits: int) -> None:
    column = eight_bit.BITS.index(bits)
    printed = eight_bit.PRINTED_SPEEDUPS[kernels, sub_batch][column]
    sync_ms = eight_bit.PRINTED_PASS_MS[sub_batch][column]
    ours = eight_bit.cluster_speedup(eight_bit.TOTAL_MS[kernels], sub_batch, sync_ms)
    assert (digits(ours, printed) == printed) is ((kernels, sub_batch, bits) not in ROUNDED_OTHERWISE)
    assert ours == pytest.approx(float(printed), rel=0.025)


def test_a_full_pass_waits_for_31_synchronisations_less_what_hides_them() -> None:
    for sub_batch, (of_32, of_8) in eight_bit.PRINTED_SYNC_MS.items():
        for sync_ms, printed_ms in zip((of_32, of_8), eight_bit.PRINTED_PASS_MS[sub_batch], strict=True):
            expected = 0.006 if (sub_batch, sync_ms) == (12288, 250.0) else 0.002
            assert eight_bit.pass_sync_ms(sync_ms) == pytest.approx(printed_ms, rel=expected)


def test_small_figures_of_the_text() -> None:
    assert sum(eight_bit.FC_PARTS_MS) == pytest.approx(eight_bit.FC_MS)
    assert sum(eight_bit.PARALLEL_FC_PARTS_MS) == pytest.approx(eight_bit.PARALLEL_FC_MS)
    assert f"{eight_bit.gradient_sync_ms():.1f}" == "1.9"
    assert [f"{ms:.0f}" for ms in eight_bit.alexnet_transfer_ms()] == ["32", "128"]
    assert f"{terngrad.up_ratio():.2f} {terngrad.up_ratio(2):.0f}" == "20.19 16"  # 20.18 is printed
    assert terngrad.down_ratio(2) == pytest.approx(32 / math.log2(5))


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


def test_terngrad_gains_less_where_the_network_is_fast() -> None:
    profile = terngrad.Profile(0.2, 128, 244e6)

    def gain(network_bps: float, machines: int) -> float:
        cluster = terngrad.Cluster(10e9, 10e9, network_bps / 8)
        plain = terngrad.weak_samples_per_s(cluster, profile, 4, machines)
        return terngrad.weak_samples_per_s(cluster, profile, 4, machines, ratio=16) / plain

    assert gain(1e9, 2) > gain(100e9, 2) > 1
    assert gain(1e9, 128) > gain(1e9, 2)
    cluster = terngrad.Cluster(10e9, 10e9, 1e9 / 8)
    found = terngrad.batch_s_of_speedup(cluster, profile, 4, 2, 16, 3.0)
    profile = terngrad.Profile(found, 128, 244e6)
    float_s = terngrad.weak_s(cluster, profile, 4, 2)
    assert float_s / terngrad.weak_s(cluster, profile, 4, 2, ratio=16) == pytest.approx(3.0)
    strong = terngrad.strong_samples_per_s(cluster, profile, 4, 2)
    assert strong < terngrad.weak_samples_per_s(cluster, profile, 4, 2)


def test_terngrads_equations_by_hand() -> None:
    cluster, profile = terngrad.Cluster(1e9, 2e9, 1e8, 0.01), terngrad.Profile(1.0, 100, 1e8)
    between_s = 0.1 * 2 + 0.05 + (0.01 + 1.0) * 3
    assert terngrad.strong_s(cluster, profile, 4, 8) == pytest.approx(0.95 / 32 + between_s)
    assert terngrad.weak_s(cluster, profile, 4, 8) == pytest.approx(0.95 + between_s)
    assert terngrad.strong_samples_per_s(cluster, profile, 4, 8) == pytest.approx(100 / (0.95 / 32 + between_s))
