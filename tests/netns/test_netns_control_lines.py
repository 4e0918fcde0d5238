"""Lines on a NIC's control socket that are no requests: each gets one line with an error, and nothing else happens."""

import json
import socket

import pytest

from netoffload.lab.testbed import Testbed

LINES = {
    "zero": b"\0",
    "zero, object": b'\0{"command": "info"}',
    "two zeros": b"\0\0{",
    "three zeros, brace": b"\0\0\0{",
    "brace, zero": b"{\0",
    "brace, three zeros": b"{\0\0\0",
    "mark of UTF-8": b"\xef\xbb\xbf{}",
    "mark of UTF-16": b"\xff\xfe{\0}\0",
    "mark of UTF-16, other order": b"\xfe\xff\0{\0}",
    "mark of UTF-32": b"\xff\xfe\0\0{\0\0\0}\0\0\0",
    "no UTF-8": b"\xc3\x28",
    "empty": b"",
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_that_is_no_request_gets_one_line(nic_bed: Testbed, name: str) -> None:
    """The NIC is user nobody here, who may not be able to read all of Python's modules."""
    node = nic_bed.plan.nodes[0]
    assert node.log_path is not None
    logged = node.log_path.read_text()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        sock.connect(str(node.control_path))
        with sock.makefile("rb") as answers:
            sock.sendall(LINES[name] + b"\n")
            first = answers.readline()
            assert first, "the NIC closed the connection without an answer"
            assert json.loads(first).keys() == {"ok", "error"}
            sock.sendall(b'{"command": "info"}\n')
            assert json.loads(answers.readline())["ok"] is True
    assert node.log_path.read_text() == logged
