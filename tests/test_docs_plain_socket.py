"""The example plain_socket.py with wrong arguments or no peer: one clear line (its data: tests/netns)."""

import socket
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "docs" / "guide" / "plain_socket.py"
PORT = 5028


def plain_socket(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=30)


def test_without_arguments_it_says_what_it_takes() -> None:
    said = plain_socket()
    assert said.returncode == 2
    assert said.stderr.startswith("usage: plain_socket.py")


def test_nobody_listening_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "in.bin").write_bytes(bytes(4))
    said = plain_socket("send", "127.99.1.2", str(tmp_path / "in.bin"))
    assert (said.returncode, said.stderr) == (1, f"port {PORT}: Connection refused: start the receiver there first\n")


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.99.1.1", PORT))
        taken.listen()
        said = plain_socket("receive", str(tmp_path / "out.bin"))
    assert (said.returncode, said.stderr) == (1, f"port {PORT}: Address already in use: end what uses it first\n")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_host_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "in.bin").write_bytes(bytes(4))
    said = plain_socket("send", "no host", str(tmp_path / "in.bin"))
    assert said.returncode == 1
    assert said.stderr.startswith("plain_socket.py: 'no host': ")
    assert said.stderr.count("\n") == 1


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    said = plain_socket("send", "127.99.1.2", str(tmp_path / "none.bin"))
    assert (said.returncode, said.stderr) == (1, f"{tmp_path}/none.bin: No such file or directory\n")
