"""``netoffload top`` on a pseudo-terminal."""

import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from netoffload.lab.testbed.plan import ENV_STATE_DIR
from tests.cli.watched_nic import RUN_ID, Cli
from tests.shared.commands import PYTHONPATH


class Terminal:
    """``netoffload top`` in a pseudo-terminal of 120 columns."""

    def __init__(self, state_dir: Path) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (40, 120))
        self.before = termios.tcgetattr(self.master)
        env = {**os.environ, ENV_STATE_DIR: str(state_dir), "PYTHONPATH": PYTHONPATH, "TERM": "xterm"}
        command = [sys.executable, "-m", "netoffload", "top", "--interval", "0.1"]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True
        )
        os.close(slave)
        self.seen = ""

    def read_until(self, text: str, timeout_s: float = 30) -> str:
        deadline = time.monotonic() + timeout_s
        while text not in self.seen:
            assert select.select([self.master], [], [], max(0, deadline - time.monotonic()))[0], self.seen
            try:
                self.seen += os.read(self.master, 65536).decode(errors="replace")
            except OSError:  # the other end is closed
                assert text in self.seen
        return self.seen

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminal(served: Path) -> Iterator[Terminal]:
    made = Terminal(served.parent.parent)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_top_shows_nics_and_flows_until_a_key_ends_it(terminal: Terminal, key: bytes) -> None:
    terminal.read_until(f"{RUN_ID}/n0")
    terminal.read_until("10.9.0.1:40000 -> 10.9.0.2:5001")
    if key == b"q":
        os.write(terminal.master, key)
    else:
        terminal.process.send_signal(2)
    terminal.read_until("\x1b[?1049l")  # the screen as it was
    assert terminal.process.wait(timeout=10) == 0
    assert termios.tcgetattr(terminal.master) == terminal.before
    assert "Traceback" not in terminal.seen


def test_without_a_terminal_it_says_so(served: Path, cli: Cli) -> None:
    assert served.exists()
    done = cli("top")
    assert done.returncode == 2
    assert "top needs a terminal" in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_a_nic_it_says_so(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path / "state")
    try:
        terminal.read_until("no NIC runs in a testbed here")
        assert terminal.process.wait(timeout=10) == 2
        assert "\x1b[?1049h" not in terminal.seen
    finally:
        terminal.close()
