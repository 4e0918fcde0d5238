"""Prometheus metrics: valid by the exposition format, complete, and served to well-behaved and other clients."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from netoffload import log
from netoffload.control import request
from netoffload.engine.counters import Counter, as_dict
from netoffload.errors import SystemRefusedError, UsageError
from netoffload.nic_options import NicProcess
from netoffload_daemon import metrics
from netoffload_daemon.control import make_handlers
from tests.cli.watched_nic import Cli, port_of
from tests.engine.nic_pair import Nic
from tests.shared.commands import netoffload, netoffloadd, running_nic
from tests.shared.ports import free_port

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")


def parse(text: str) -> dict[tuple[str, str], float]:
    """Read an exposition line by line; a family is HELP, TYPE, then all of its samples, once."""
    assert text.endswith("\n")
    samples: dict[tuple[str, str], float] = {}
    family, seen, lines = "", set(), iter(text.splitlines())
    for line in lines:
        if help_line := re.fullmatch(rf"# HELP ({NAME}) (.+)", line):
            family = help_line[1]
            assert family not in seen
            seen.add(family)
            kind = re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge)", next(lines))
            assert kind is not None
            assert kind[1] == family
            assert (kind[2] == "counter") == family.endswith("_total")
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample is not None, line
        assert sample[1] == family
        key = (sample[1], sample[2] or "")
        assert key not in samples
        samples[key] = float(sample[3])
    assert {name for name, _ in samples} == seen
    return samples


def text_of(nic: Nic) -> str:
    handlers = make_handlers(NicProcess(host="tap:inc0", wire="wire0"), port_of(nic), -1)
    return str(handlers["metrics"]({})["metrics"])


def test_every_counter_is_in_the_metrics(nic: Nic) -> None:
    samples = parse(text_of(nic))
    counted = as_dict(nic.counters)
    assert samples["netoffload_tx_raw_octets_total", ""] == counted["tx_raw_octets"] > 0
    assert samples["netoffload_bypass_total", 'reason="peer"'] == 1
    assert samples["netoffload_drops_total", 'reason="bad_crc"'] == 0
    assert samples["netoffload_tx_floats_total", 'bits="8"'] == counted["tx_class_8"] > 0
    assert samples["netoffload_tx_codec_seconds_total", ""] == 0
    assert samples["netoffload_flows", 'direction="tx"'] == 2
    assert samples["netoffload_wire_mtu_octets", ""] == 1500
    (info,) = [labels for name, labels in samples if name == "netoffload_info"]
    assert 'codec="inceptionn",bound_k="10",packing="coalesced",encapsulation="udp"' in info
    assert 'tag="0x28",ports="",kernel="' in info
    assert len(samples) == len(Counter) + 4


def test_labels_are_escaped(nic: Nic) -> None:
    info = {"pid": 1, "mtu": 1500, "wire": 'a"b\\c\nd'}
    samples = parse(metrics.exposition(info, as_dict(nic.counters), {"tx": 0}))
    assert ("netoffload_info", r'wire="a\"b\\c\nd"') in samples


def test_the_same_from_the_control_socket_and_the_command_line(served: Path, nic: Nic, cli: Cli) -> None:
    assert request(served, "metrics")["metrics"] == text_of(nic)
    assert cli("stats", "n0", "--prometheus").stdout == text_of(nic)


@pytest.fixture
def port(nic: Nic) -> Iterator[int]:
    with metrics.serve_metrics(0, lambda: text_of(nic)) as port:
        yield port


def scrape(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        assert answer.headers["Content-Type"] == metrics.CONTENT_TYPE
        return str(answer.read().decode())


def test_a_scrape_gets_the_metrics(port: int, nic: Nic) -> None:
    assert scrape(port) == scrape(port, "/metrics?name=x") == text_of(nic)


def test_anything_else_is_refused(port: int) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        scrape(port, "/")
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", data=b"x")
    with pytest.raises(urllib.error.HTTPError, match="501"):
        urllib.request.urlopen(asked, timeout=10)


def test_clients_that_misbehave_do_not_stop_the_server(
    port: int, nic: Nic, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    deadline_s = metrics.DEADLINE_S
    for sent, answered in (
        (b"", b""),  # says nothing, and is cut off
        (b"GET /metrics HTTP/1.1\r\n", b""),  # never ends its request
        (b"\x00\xff\x16\x03\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * metrics.MAX_HEAD_OCTETS, b"431"),
        (b"G" * metrics.MAX_HEAD_OCTETS, b"400"),
    ):
        monkeypatch.setattr(metrics, "DEADLINE_S", deadline_s if answered else 0.2)
        with socket.create_connection(("127.0.0.1", port), timeout=10) as conn:
            conn.sendall(sent)
            got = b""
            with contextlib.suppress(ConnectionResetError):  # it had not read all of it
                while octets := conn.recv(4096):
                    got += octets
        assert answered in got
    assert scrape(port) == text_of(nic)
    assert "Traceback" not in capfd.readouterr().err


def test_clients_that_stall_hold_up_nobody(port: int, nic: Nic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "DEADLINE_S", 60.0)
    with contextlib.ExitStack() as stack:

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))

        stalled = [connect() for _ in range(metrics.CONNECTIONS_MAX - 1)]
        assert scrape(port) == text_of(nic)
        said = b""
        while not said:  # the scrape's thread may end before the next one comes, which then stalls too
            last = connect()
            last.settimeout(0.1)
            with contextlib.suppress(TimeoutError):
                said = last.recv(4096)
        assert said.startswith(b"HTTP/1.0 503 ")
        for client in stalled:
            client.close()
        deadline = time.monotonic() + 10
        while True:  # their threads are over a moment later
            with contextlib.suppress(OSError):
                assert scrape(port) == text_of(nic)
                break
            assert time.monotonic() < deadline


def test_a_port_in_use_is_one_clear_error(port: int) -> None:
    with (
        pytest.raises(SystemRefusedError, match=f"cannot serve metrics on 127.0.0.1:{port}"),
        metrics.serve_metrics(port, str),
    ):
        pass


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/net/tun"), reason="needs root and TUN")
def test_a_running_nic_is_scraped(wire: str) -> None:
    free = free_port()
    devices = ["--host", "tap:novis0", "--ephemeral", "--wire", "w0", "--wire-netns", wire]
    arguments = [*devices, "--metrics-port", str(free), "--log-format", "json"]
    with running_nic(arguments, stderr=subprocess.PIPE) as daemon:
        (info,) = [labels for name, labels in parse(scrape(free)) if name == "netoffload_info"]
        assert 'host="tap:novis0",wire="w0",codec="inceptionn",bound_k="10"' in info
        daemon.terminate()
        said = daemon.communicate(timeout=10)[1]
        assert daemon.returncode == 0
    forwarding, stopped = (line for line in map(json.loads, said.splitlines()) if line["event"] != "compiling")
    assert {"event": "forwarding", "host": "tap:novis0", "wire": "w0", "bound_k": 10}.items() <= forwarding.items()
    assert (stopped["event"], stopped["level"], stopped["exit_code"]) == ("stopped", "info", 0)


def test_what_a_nic_refuses_is_an_object_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    refused = netoffloadd("--log-format=json", "--host", "tap:a", "--wire", "b", "--bound", "17")
    log.choose("text")
    said = json.loads(refused.stderr)
    assert (refused.returncode, said["level"], said["event"], said["exit_code"]) == (2, "error", "refused", 2)
    assert said["message"].startswith("bound 17 is outside")
    assert netoffloadd("--log-format", "yaml", "--host", "tap:a", "--wire", "b").stderr.endswith("text, json\n")


def expressions() -> dict[str, str]:
    """Every expression of the dashboard and the alerts, by where it stands; Grafana's variables are filled in."""
    board = json.loads(netoffload("stats", "--dashboard").stdout)
    found = {f"{panel['title']} {one['refId']}": one["expr"] for panel in board["panels"] for one in panel["targets"]}
    yaml = pytest.importorskip("yaml")
    (group,) = yaml.safe_load(netoffload("stats", "--alerts").stdout)["groups"]
    return {name: text.replace("$__rate_interval", "1m") for name, text in found.items()} | {
        rule["alert"]: rule["expr"] for rule in group["rules"]
    }


def test_dashboard_and_alerts_ask_for_metrics_that_there_are(nic: Nic) -> None:
    samples = parse(text_of(nic))
    metrics_there = {name for name, _ in samples}
    reasons = {labels for _, labels in samples}
    asked = expressions()
    assert len(asked) > 20
    for where, text in asked.items():
        names = set(re.findall(r"netoffload_\w+", text))
        assert names <= metrics_there, where
        assert names or "up{" in text
        assert set(re.findall(r'(reason="\w+")', text)) <= reasons, where
    joined = " ".join(asked.values())
    for subject in ("drops_total", "tx_fallbacks_total", "tx_payload_octets_total", "wire_full"):
        assert subject in joined


def test_the_dashboard_has_what_grafana_asks_for() -> None:
    board = json.loads(netoffload("stats", "--dashboard").stdout)
    assert {"uid", "title", "schemaVersion", "time", "templating", "panels"} <= board.keys()
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        assert panel["type"] in ("timeseries", "table")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        cells = {(place["x"] + right, place["y"] + down) for right in range(place["w"]) for down in range(place["h"])}
        assert not cells & taken
        assert max(right for right, _ in cells) < 24
        taken |= cells
        assert all(target["expr"] and target["refId"] for target in panel["targets"])


def test_every_alert_says_how_bad_it_is_and_what_happened() -> None:
    yaml = pytest.importorskip("yaml")
    (group,) = yaml.safe_load(netoffload("stats", "--alerts").stdout)["groups"]
    for rule in group["rules"]:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"]


@pytest.mark.parametrize("number", [0, -1, 65536])
def test_a_port_that_cannot_be_is_refused(number: int) -> None:
    with pytest.raises(UsageError, match=r"outside 1\.\.65535"):
        NicProcess(host="tap:a", wire="b", metrics_port=number)
