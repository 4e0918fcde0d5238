"""Plans are data: names, numbers and refusals, without root."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netoffload.errors import UsageError
from netoffload.lab.testbed import LinkRate, NicSettings, TestbedSettings, build, make_plan, new_run_id, parse_links
from netoffload.lab.testbed.links import TBF_RATE_BPS_MAX
from netoffload.lab.testbed.plan import (
    GSO_FRAME_OCTETS_MAX,
    MTU_MAX,
    MTU_MIN,
    NODES_MAX,
    RATE_BPS_MIN,
    nic_argv,
    settings_from_json,
)

ROOT = Path("/run/netoffload")
IFNAMSIZ = 16  # linux/if.h; the last octet is zero


@pytest.mark.parametrize("nic", [NicSettings(), None])
def test_every_name_others_can_see_carries_the_run_id(nic: NicSettings | None) -> None:
    plan = make_plan(TestbedSettings(NODES_MAX, 10**9, nic=nic), "3fa9c1", ROOT)
    names = plan.netns_names
    assert len(set(names)) == len(names) == 1 + NODES_MAX * (2 if nic else 1)
    assert all(name.startswith("no-3fa9c1-") for name in names)
    for node in plan.nodes:
        for path in (node.control_path, node.log_path):
            assert path is None or path.parent == ROOT / "3fa9c1"
    assert plan.mark == "NETOFFLOAD_RUN=3fa9c1"


def test_devices_fit_the_kernel_and_addresses_the_network() -> None:
    plan = make_plan(TestbedSettings(NODES_MAX), "a", ROOT)
    devices = {name for node in plan.nodes for name in (node.device, node.wire_device, node.port)} | {plan.bridge}
    assert all(len(name) < IFNAMSIZ for name in devices)
    assert len({node.port for node in plan.nodes}) == NODES_MAX
    assert [node.address for node in plan.nodes[:2]] == ["10.98.1.1", "10.98.1.2"]
    assert len({node.address for node in plan.nodes}) == NODES_MAX


def test_with_a_nic_the_wire_has_a_namespace_of_its_own() -> None:
    with_nic = make_plan(TestbedSettings(1), "a", ROOT).nodes[0]
    assert (with_nic.netns, with_nic.wire_netns) == ("no-a-n0", "no-a-n0w")
    assert (with_nic.device, with_nic.wire_device) == ("inc0", "wire0")
    plain = make_plan(TestbedSettings(1, nic=None), "a", ROOT).nodes[0]
    assert plain.wire_netns == plain.netns
    assert plain.wire_device == plain.device == "inc0"
    assert plain.control_path is None


@given(rate_bps=st.integers(RATE_BPS_MIN, TBF_RATE_BPS_MAX))
def test_shapes_hold_a_whole_gso_frame_and_a_millisecond(rate_bps: int) -> None:
    node = make_plan(TestbedSettings(1, rate_bps), "a", ROOT).nodes[0]
    for shape in (node.node_shape, node.port_shape):
        assert shape is not None
        assert shape.rate_bps == rate_bps
        assert shape.burst_octets >= 2 * GSO_FRAME_OCTETS_MAX
        assert shape.burst_octets * 8 * 1000 >= rate_bps - 8000
        assert shape.limit_octets > shape.burst_octets
        assert shape.limit_octets < 2**32  # tbf's limit is 32 bits


def test_without_a_rate_nothing_is_shaped() -> None:
    node = make_plan(TestbedSettings(2), "a", ROOT).nodes[1]
    assert node.node_shape is None
    assert node.port_shape is None


def test_every_wire_has_a_rate_down_and_one_up() -> None:
    links = parse_links("1gbit,500mbit/110mbit")
    assert list(map(str, links)) == ["1 Gb/s", "500 Mb/s down and 110 Mb/s up"]
    settings = TestbedSettings(4, links=links)
    shapes = [(node.port_shape, node.node_shape) for node in make_plan(settings, "a", ROOT).nodes]
    rates_mbps = [[shape.rate_bps // 10**6 for shape in pair if shape] for pair in shapes]
    assert rates_mbps == [[1000, 1000], [500, 110], [500, 110], [500, 110]]
    assert settings_from_json(json.loads(json.dumps(asdict(settings)))) == settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        *(({"nodes": nodes}, r"1\.\.65") for nodes in (0, -1, NODES_MAX + 1)),
        *(({"rate_bps": rate}, "rate") for rate in (0, -5, RATE_BPS_MIN - 1, TBF_RATE_BPS_MAX + 1)),
        ({"links": (LinkRate(10**7, RATE_BPS_MIN - 1),)}, "rate"),
        ({"links": 3 * (LinkRate(10**7, 10**7),)}, "3 rates for 2 nodes"),
        ({"rate_bps": 10**7, "links": (LinkRate(10**7, 10**7),)}, "1 rates for 2 nodes"),
        *(({"mtu": mtu}, "mtu") for mtu in (0, MTU_MIN - 1, MTU_MAX + 1)),
    ],
)
def test_refuses_what_no_testbed_can_do(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        TestbedSettings(**{"nodes": 2, **settings})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"codec": "zip"}, "codec"),
        ({"bound_k": 17}, "bound"),
        ({"packing": "loose"}, "packing"),
        ({"host": "macvlan"}, "choose from tap, veth"),
        ({"threads": 3}, "3 threads"),
        ({"faults": "lose=1"}, "fault 'lose=1' is unknown"),
        ({"bypass": "card"}, "choose from user, kernel"),
        ({"bypass": "kernel", "faults": "loss=0.1"}, "faults and bypass kernel exclude each other"),
        ({"tag": "0x29"}, "ECN bits"),
        ({"ports": "http"}, "are not a list"),
        ({"tag": "any"}, "tag any needs ports"),
    ],
)
def test_refuses_what_no_nic_can_do(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        NicSettings(**settings)


@pytest.mark.parametrize("run_id", ["", "A", "../x", "a b", "a" * 17, "a/b"])
def test_refuses_run_ids_that_cannot_be_names(run_id: str) -> None:
    with pytest.raises(UsageError, match="run id"):
        make_plan(TestbedSettings(1), run_id, ROOT)


def test_refuses_a_state_directory_too_long_for_a_socket() -> None:
    with pytest.raises(UsageError, match="NETOFFLOAD_STATE_DIR"):
        make_plan(TestbedSettings(1), "a", Path("/" + "d" * 100))


def test_random_run_ids_are_run_ids() -> None:
    for _ in range(20):
        run_id = new_run_id()
        assert make_plan(TestbedSettings(1), run_id, ROOT).run_id == run_id


@pytest.mark.parametrize(
    "settings",
    [TestbedSettings(3, 10**8, 9000, NicSettings(bound_k=6, packing="per-segment")), TestbedSettings(1, nic=None)],
)
def test_settings_survive_json(settings: TestbedSettings) -> None:
    assert settings_from_json(asdict(settings)) == settings


def test_unknown_node_is_refused_with_those_there_are() -> None:
    plan = make_plan(TestbedSettings(3), "a", ROOT)
    assert plan.node("n2") is plan.nodes[2]
    with pytest.raises(UsageError, match=r"n0\.\.n2"):
        plan.node("n3")


def test_a_nic_on_a_veth_pair_is_told_its_own_end_and_faults_differ_by_node() -> None:
    nic = NicSettings(host="veth", faults="loss=0.5,seed=7", threads=2, busy_poll_us=50)
    plan = make_plan(TestbedSettings(2, nic=nic), "a", ROOT)
    for node in plan.nodes:
        words = nic_argv(plan, node, 9)
        pairs = dict(zip(words[::2], words[1::2], strict=True))
        assert (pairs["--host"], pairs["--host-netns"]) == ("veth:host0", f"/run/netns/no-a-n{node.index}w")
        assert pairs["--fault"] == f"loss=0.5,seed={7 + node.index}"
        assert (pairs["--threads"], pairs["--busy-poll"]) == ("2", "50")


def test_nic_arguments_say_everything_that_was_asked_for() -> None:
    plan = make_plan(TestbedSettings(1, nic=NicSettings(bound_k=6, packing="per-segment")), "a", ROOT)
    words = nic_argv(plan, plan.nodes[0], 9)
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    assert pairs == {
        "--flow-table": str(plan.state_dir / "flows-n0.bin"),
        "--host": "tap:inc0",
        "--host-netns": "/run/netns/no-a-n0",
        "--wire": "wire0",
        "--wire-netns": "/run/netns/no-a-n0w",
        "--codec": "inceptionn",
        "--bound": "6",
        "--packing": "per-segment",
        "--encapsulation": "udp",
        "--fault": "",
        "--threads": "1",
        "--busy-poll": "0",
        "--bypass": "user",
        "--tag": "0x28",
        "--ports": "",
        "--trust": "socket",
        "--log-format": "text",
        "--control": "/run/netoffload/a/n0.sock",
        "--ready-fd": "9",
    }
    plain = make_plan(TestbedSettings(1, nic=None), "a", ROOT)
    with pytest.raises(UsageError, match="without NICs"):
        nic_argv(plain, plain.nodes[0], 9)


def test_a_nic_is_told_its_tag_and_ports_and_programs_keep_to_them() -> None:
    nic = NicSettings(tag="AF21", ports="7100-7110,7200")
    plan = make_plan(TestbedSettings(1, nic=nic), "a", ROOT)
    argv = nic_argv(plan, plan.nodes[0], 3)
    assert argv[argv.index("--tag") :][:4] == ["--tag", "AF21", "--ports", "7100-7110,7200"]
    assert settings_from_json(asdict(plan.settings)) == plan.settings
    assert (nic.tos, nic.tagged_port(7105), nic.tagged_port(5028)) == (0x48, 7105, 7100)
    everything = NicSettings(tag="any", ports="5000-5100")
    assert (everything.tos, everything.tagged_port(5028)) == (0x28, 5028)
    assert NicSettings().tagged_port(5028) == 5028


def test_octets_have_the_time_of_the_fastest_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a slow reading the counter may be seconds older than the clock."""
    clock, octets = iter([0.0, 5.0, 5.0, 5.25, 6.0, 9.0]), iter([1, 2, 3])
    monkeypatch.setattr(build, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(build, "_probed_octets", lambda *_: next(octets))
    nobody: Any = None
    assert build._probed(nobody, nobody) == (2, 5.125)
