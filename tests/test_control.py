"""Both halves of the control socket, over a real one."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from netoffload.control import MAX_REQUEST_OCTETS, ControlServer, request
from netoffload.errors import ControlError, UsageError


def refuse(_: Mapping[str, Any]) -> dict[str, Any]:
    raise UsageError("no such flow")


HANDLERS = {"add": lambda asked: {"sum": asked["a"] + asked["b"]}, "refuse": refuse}


def test_a_request_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    with ControlServer(path, HANDLERS):
        assert request(path, "add", a=1, b=2) == {"sum": 3}
        assert os.stat(path).st_mode & 0o777 == 0o600
    assert not path.exists()


def test_errors_are_answers_and_the_server_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    with ControlServer(path, HANDLERS):
        with pytest.raises(ControlError, match="no such flow"):
            request(path, "refuse")
        with pytest.raises(ControlError, match="unknown command 'x': one of add, refuse"):
            request(path, "x")
        with socket.socket(socket.AF_UNIX) as conn:
            conn.connect(str(path))
            lines = conn.makefile("rb")
            for line in (b"\n", b"[]\n", b"{\n", b'{"command": 3}\n', b"\xff\n", b"[" * 60000 + b"\n"):
                conn.sendall(line)
                assert json.loads(lines.readline())["ok"] is False
            conn.sendall(b"x" * (MAX_REQUEST_OCTETS + 2) + b"\n")
            assert "longer" in json.loads(lines.readline())["error"]
            lines.close()
        assert request(path, "add", a=2, b=2) == {"sum": 4}


def test_a_dead_sockets_file_is_replaced_a_living_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with ControlServer(path, HANDLERS):
        with pytest.raises(ControlError, match="in use"), ControlServer(path, HANDLERS):
            pass
        assert request(path, "add", a=0, b=0) == {"sum": 0}


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("precious")
    with pytest.raises(ControlError, match="is not a socket"), ControlServer(path, HANDLERS):
        pass
    assert path.read_text() == "precious"


def test_nobody_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="did not answer 'info'"):
        request(tmp_path / "none.sock", "info")
