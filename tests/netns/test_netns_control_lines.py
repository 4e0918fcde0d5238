"""Lines on a NIC's control socket that are no requests: each gets one line with an error, and nothing else happens."""

import json
import socket

from netoffload.lab.testbed import Testbed

LINES = (
    *(b"\0", b'\0{"command": "info"}', b"\0\0{", b"\0\0\0{", b"{\0", b"{\0\0\0"),
    *(b"\xef\xbb\xbf{}", b"\xff\xfe{\0}\0", b"\xfe\xff\0{\0}", b"\xff\xfe\0\0{\0\0\0}\0\0\0"),  # marks of UTF
    *(b"\xc3\x28", b""),
)


def test_a_line_that_is_no_request_gets_one_line(nic_bed: Testbed) -> None:
    """The NIC is user nobody here, who may not be able to read all of Python's modules."""
    node = nic_bed.plan.nodes[0]
    assert node.log_path is not None
    logged = node.log_path.read_text()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        sock.connect(str(node.control_path))
        with sock.makefile("rb") as answers:
            for line in LINES:
                sock.sendall(line + b"\n")
                assert json.loads(answers.readline() or "{}").keys() == {"ok", "error"}, line
                sock.sendall(b'{"command": "info"}\n')
                assert json.loads(answers.readline())["ok"] is True
    assert node.log_path.read_text() == logged
