"""``netoffload stats`` on a NIC whose traffic is known."""

import json
import re
from pathlib import Path

import pytest

from netoffload.control import serve_control
from netoffload.engine.counters import Counter
from netoffload.lab.testbed import NicSettings, TestbedSettings, make_plan
from netoffload.lab.testbed.journal import Journal
from tests.cli.watched_nic import FLOATS, RUN_ID, Cli
from tests.engine.nic_pair import Nic


def test_stats_says_what_the_nic_did(served: Path, nic: Nic, cli: Cli) -> None:
    done = cli("stats")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"NIC {RUN_ID}/n0: tap:inc0 - wire0, inceptionn, bound 2^-10, coalesced")
    first, last = lines.index("  counters") + 1, next(i for i, line in enumerate(lines) if line.startswith("  flows"))
    counted = {words[0]: int(words[1].replace(",", "")) for words in map(str.split, lines[first:last])}
    assert counted == nic.counts()  # every counter that is not 0, and only those
    assert "drop_bad_crc" not in done.stdout
    assert any(
        re.fullmatch(r"  floats +0 bit [\d.]+%  8 bit [\d.]+%  16 bit [\d.]+%  32 bit [\d.]+%", line) for line in lines
    )
    flows = [line for line in lines if "->" in line]
    assert len(flows) == 2
    assert re.search(
        r"tx 10\.9\.0\.1:40000 -> 10\.9\.0\.2:5001 +40,000 +[\d,]+ +[34]\.\d\d +0  operator +compressed$", flows[0]
    )
    assert re.search(r"tx 10\.9\.0\.1:40001 -> 10\.9\.0\.2:5001 +0 +0 +- +1  not asked +peer cannot$", flows[1])
    assert "drop_bad_crc                             0  block with a wrong CRC32C" in cli("stats", "--all").stdout


@pytest.mark.parametrize("name", ["n0", f"{RUN_ID}/n0", "path"])
def test_json_has_counters_derived_numbers_and_flows(served: Path, nic: Nic, cli: Cli, name: str) -> None:
    done = cli("stats", str(served) if name == "path" else name, "--json")
    assert done.returncode == 0, done.stderr
    (state,) = json.loads(done.stdout)["nics"]
    assert state["control"] == str(served)
    assert state["counters"]["tx_raw_octets"] == 2 * FLOATS
    assert sum(state["summary"]["class_shares"].values()) == pytest.approx(1)
    assert state["summary"]["bypasses"]["peer"] == 1
    assert set(state["summary"]["drops"].values()) == {0}
    payload = nic.counts()["tx_payload_octets"]
    assert state["summary"]["tx"]["ratio"] == state["flows"][0]["ratio"] == pytest.approx(2 * FLOATS / payload)


def test_watch_prints_one_line_per_interval(served: Path, cli: Cli) -> None:
    done = cli("stats", "n0", "--watch", "0.1", "--count", "2")
    heading, *lines = done.stdout.splitlines()
    assert heading.split()[0] == "NIC"
    assert [line.split()[:2] for line in lines] == [[f"{RUN_ID}/n0", "0"]] * 2
    rates = [json.loads(line) for line in cli("stats", "--watch", "0.1", "--count", "2", "--json").stdout.splitlines()]
    assert [(row["nic"], row["tx_host_bps"], row["tx_ratio"]) for row in rates] == [(f"{RUN_ID}/n0", 0, None)] * 2


@pytest.mark.parametrize(
    ("words", "exit_code", "said"),
    [
        ((), 2, "no NIC runs in a testbed here"),
        (("n9",), 2, "no NIC 'n9'"),
        (("nosuch/n0",), 2, "no run nosuch"),
        (("/nonexistent/nic.sock",), 1, "did not answer 'info'"),
        (("--count", "2"), 2, "--watch"),
        (("--prometheus", "--json"), 2, "--prometheus"),
    ],
)
def test_what_is_not_there_is_one_line(cli: Cli, words: tuple[str, ...], exit_code: int, said: str) -> None:
    done = cli("stats", *words)
    assert (done.returncode, done.stdout) == (exit_code, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("testbed_plan")
def test_a_nic_that_is_gone_is_said_to_be(cli: Cli) -> None:
    done = cli("stats", "n0")
    assert done.returncode == 1
    assert "did not answer 'info'" in done.stderr


@pytest.mark.parametrize("words", [(), ("--json",), ("--watch", "0.1", "--count", "2")])
def test_one_of_several_that_does_not_answer_is_said_once(served: Path, cli: Cli, words: tuple[str, ...]) -> None:
    gone = make_plan(TestbedSettings(1, nic=NicSettings()), "gone", served.parents[1])
    Journal.create(gone).append("ready", rate_bps_measured=None)
    done = cli("stats", *words)
    assert done.returncode == 1
    assert f"{RUN_ID}/n0" in done.stdout
    assert done.stderr.count("\n") == 1
    assert f"{gone.nodes[0].control_path} did not answer" in done.stderr


def test_another_program_on_the_socket_is_one_line(tmp_path: Path, cli: Cli) -> None:
    with serve_control(tmp_path / "other.sock", {"wires": lambda _: {}}):
        done = cli("stats", str(tmp_path / "other.sock"))
    assert done.returncode == 1
    assert "unknown command 'info'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_explain_says_what_every_counter_counts(cli: Cli) -> None:
    done = cli("stats", "--explain")
    assert [line.split()[0] for line in done.stdout.splitlines()] == [counter.name.lower() for counter in Counter]
    assert json.loads(cli("stats", "--explain", "--json").stdout)["drop_bad_crc"].startswith(
        "block with a wrong CRC32C"
    )
