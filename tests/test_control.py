"""Both halves of the control socket, over a real socket."""

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from netoffload import control
from netoffload.control import MAX_CONNECTIONS, MAX_REQUEST_OCTETS, request, serve_control
from netoffload.errors import ControlError, SystemRefusedError, UsageError


def refuse(_: Mapping[str, Any]) -> dict[str, Any]:
    raise UsageError("no such flow")


HANDLERS = {"add": lambda asked: {"sum": asked["a"] + asked["b"]}, "refuse": refuse}


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """The socket of a server."""
    with serve_control(tmp_path / "c.sock", HANDLERS):
        yield tmp_path / "c.sock"


def connect(path: Path) -> socket.socket:
    conn = socket.socket(socket.AF_UNIX)
    conn.settimeout(10)
    conn.connect(str(path))
    return conn


def test_a_request_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    with serve_control(path, HANDLERS):
        assert request(path, "add", a=1, b=2) == {"sum": 3}
        assert os.stat(path).st_mode & 0o777 == 0o600
    assert not path.exists()


def test_errors_are_answers_and_the_server_goes_on(path: Path) -> None:
    with pytest.raises(ControlError, match="no such flow"):
        request(path, "refuse")
    with pytest.raises(ControlError, match="unknown command 'x': one of add, refuse"):
        request(path, "x")
    with connect(path) as conn, conn.makefile("rb") as lines:
        for line in (b"\n", b"[]\n", b"{\n", b'{"command": 3}\n', b"\xff\n", b"[" * 60000 + b"\n"):
            conn.sendall(line)
            assert json.loads(lines.readline())["ok"] is False
        conn.sendall(b"x" * (MAX_REQUEST_OCTETS + 2) + b"\n")
        assert "longer" in json.loads(lines.readline())["error"]
    assert request(path, "add", a=2, b=2) == {"sum": 4}


def test_a_dead_sockets_file_is_replaced_a_living_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with serve_control(path, HANDLERS):
        with pytest.raises(SystemRefusedError, match="in use"), serve_control(path, HANDLERS):
            pass
        assert request(path, "add", a=0, b=0) == {"sum": 0}


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("precious")
    with pytest.raises(SystemRefusedError, match="is not a socket"), serve_control(path, HANDLERS):
        pass
    assert path.read_text() == "precious"


def test_a_socket_that_cannot_be_made_leaves_nothing_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(SystemRefusedError, match="cannot listen") as refused, serve_control(tmp_path / "no" / "s", {}):
        pass
    assert os.listdir("/proc/self/fd") == before, refused  # the error still holds its frames, and what is in them
    assert list(tmp_path.iterdir()) == []


def test_nobody_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="did not answer 'info': no NIC listens there"):
        request(tmp_path / "none.sock", "info")


def test_arguments_of_the_wrong_type_are_one_error_line(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with connect(path) as conn, conn.makefile("rb") as lines:
        for arguments, said in (
            ({}, "KeyError"),
            ({"a": 1, "b": "x"}, "TypeError"),
            ({"a": [], "b": None}, "TypeError"),
        ):
            conn.sendall(json.dumps({"command": "add", **arguments}).encode() + b"\n")
            assert f"add failed: {said}" in json.loads(lines.readline())["error"]
        conn.sendall(b'{"command": "add", "a": 2, "b": 3}\n')
        assert json.loads(lines.readline()) == {"ok": True, "sum": 5}
    assert "Traceback" in capfd.readouterr().err  # for whoever mends it


@pytest.mark.parametrize("seed", range(3))
def test_garbage_is_answered_line_by_line(path: Path, seed: int) -> None:
    pick = random.Random(seed)
    for _ in range(50):
        garbage = pick.randbytes(pick.randrange(2000))
        with connect(path) as conn, conn.makefile("rb") as answers:
            conn.sendall(garbage)
            conn.shutdown(socket.SHUT_WR)
            told = [json.loads(answer)["ok"] for answer in answers]
        assert told == [False] * garbage.count(b"\n")
    assert request(path, "add", a=1, b=1) == {"sum": 2}


def test_a_request_in_pieces_is_one_and_several_at_once_are_several(path: Path) -> None:
    asked = b'{"command": "add", "a": 2, "b": 3}\n'
    with connect(path) as conn, conn.makefile("rb") as lines:
        for octet in asked + asked + asked[:-1]:
            conn.sendall(bytes((octet,)))
        assert [json.loads(lines.readline())["sum"] for _ in range(2)] == [5, 5]
        conn.sendall(b"\n" + asked * 2)
        assert [json.loads(lines.readline())["sum"] for _ in range(3)] == [5, 5, 5]


def test_half_a_line_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "IDLE_TIMEOUT_S", 0.2)
    path = tmp_path / "c.sock"
    with serve_control(path, HANDLERS), connect(path) as silent, connect(path) as half:
        with contextlib.suppress(BrokenPipeError):  # it may have been closed already
            half.sendall(b'{"command": "add"')
        assert (silent.recv(100), half.recv(100)) == (b"", b"")
        monkeypatch.undo()
        assert request(path, "add", a=1, b=1) == {"sum": 2}


def test_no_more_connections_than_the_limit(path: Path) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            conn = stack.enter_context(connect(path))
            conn.sendall(b"x\n")
            assert json.loads(conn.recv(1000))["ok"] is False  # it has its thread
        with pytest.raises(ControlError, match="32 connections are open already"):
            request(path, "add", a=1, b=1)
        stack.close()
        for _ in range(100):
            with contextlib.suppress(ControlError):  # the threads see it in a moment
                assert request(path, "add", a=1, b=1) == {"sum": 2}
                break
            threading.Event().wait(0.05)
        else:
            pytest.fail("connections that were closed are not free again")


SERVER_THAT_IS_STOPPED = """
import sys, threading, time
from pathlib import Path
from netoffload.control import serve_control

stopped = threading.Event()

def stop(_):
    stopped.set()
    time.sleep(0.2)  # by then the process would have ended
    return {"said": "bye"}

with serve_control(Path(sys.argv[1]), {"stop": stop}):
    print("ready", flush=True)
    stopped.wait()
"""


def test_the_request_that_ends_the_process_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    command = [sys.executable, "-c", SERVER_THAT_IS_STOPPED, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        assert request(path, "stop") == {"said": "bye"}
    assert server.returncode == 0
    assert not path.exists()
