"""A signal reaches only the intended process, and ranks end whose launcher does not do its part."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from netoffload.errors import RunError
from netoffload.lab.testbed import launch, processes
from netoffload.lab.testbed.processes import EXEC_LOOKS, ProcessId, end, identify, is_alive, marked
from tests.shared import local_ranks

DEAF = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); sys.stdin.read()"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def identity(process: subprocess.Popen[bytes]) -> ProcessId:
    found = identify(process.pid)
    assert found is not None
    return found


def test_a_process_is_known_by_pid_and_start_time(sleeper: subprocess.Popen[bytes]) -> None:
    assert identity(sleeper).pid == sleeper.pid
    assert is_alive(identity(sleeper))
    own = identify(os.getpid())
    assert own is not None
    assert own.start_ticks <= identity(sleeper).start_ticks


def test_a_zombie_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    known = identity(sleeper)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # dead, not buried: its pid is still taken
    assert identify(sleeper.pid) is None
    assert not is_alive(known)


def test_who_took_over_a_pid_is_not_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    known = identity(sleeper)
    end([ProcessId(known.pid, known.start_ticks - 1)], grace_s=0.0)
    assert sleeper.poll() is None
    end([known])
    assert sleeper.wait(timeout=5) == -signal.SIGTERM


def test_who_does_not_listen_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", DEAF], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as deaf:
        assert deaf.stdout is not None
        deaf.stdout.readline()
        end([identity(deaf)], grace_s=0.1)
        assert deaf.wait(timeout=5) == -signal.SIGKILL


def test_ending_the_dead_does_nothing(sleeper: subprocess.Popen[bytes]) -> None:
    known = identity(sleeper)
    sleeper.kill()
    code = sleeper.wait()
    end([known])
    assert sleeper.returncode == code == -signal.SIGKILL


def test_a_mark_finds_children_and_grandchildren_and_no_one_else(sleeper: subprocess.Popen[bytes]) -> None:
    mark = f"NETOFFLOAD_RUN=t{secrets.token_hex(4)}"
    name, _, value = mark.partition("=")
    with subprocess.Popen(
        ["/bin/sh", "-c", "/bin/sleep 60 & echo $!; wait"],
        env={**os.environ, name: value},
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as shell:
        assert shell.stdout is not None
        grandchild = int(shell.stdout.readline())
        found = marked(mark)
        assert {process.pid for process in found} == {shell.pid, grandchild}
        assert marked(mark[:-1]) == []
        end(found)
        assert marked(mark) == []
    assert sleeper.poll() is None


@pytest.mark.slow
def test_a_process_is_found_in_the_middle_of_an_exec() -> None:
    mark = f"NETOFFLOAD_RUN=t{secrets.token_hex(4)}"
    name, _, value = mark.partition("=")
    env = {**os.environ, name: value, "AGAIN": 'exec /bin/sh -c "$AGAIN"'}
    with subprocess.Popen(["/bin/sh", "-c", 'exec /bin/sh -c "$AGAIN"'], env=env) as restless:
        try:
            # One moment in twenty shows no environment.
            missed = sum(restless.pid not in {process.pid for process in marked(mark)} for _ in range(300))
        finally:
            restless.kill()
    assert missed == 0


def test_nobody_waits_for_who_has_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: Counter[int] = Counter()

    def look(entry: Path) -> bool:
        looks[int(entry.name)] += 1
        return may_be_in_exec(entry)

    may_be_in_exec = processes._may_be_in_exec
    monkeypatch.setattr(processes, "_may_be_in_exec", look)
    with contextlib.ExitStack() as stack:
        bare = [stack.enter_context(subprocess.Popen(["/bin/sleep", "60"], env={})) for _ in range(3)]
        zombie = stack.enter_context(subprocess.Popen(["/bin/true"], env={"NETOFFLOAD_RUN": "zombie"}))
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        try:
            assert marked("NETOFFLOAD_RUN=zombie") == []
        finally:
            for process in bare:
                process.kill()
    assert all(1 <= looks[process.pid] < EXEC_LOOKS // 2 for process in bare)  # one may have been in its exec
    assert looks[zombie.pid] <= 1


def test_we_and_our_ancestors_are_never_found() -> None:
    mark = f"NETOFFLOAD_RUN=t{secrets.token_hex(4)}"
    name, _, value = mark.partition("=")
    program = f"from netoffload.lab.testbed.processes import marked; print(len(marked({mark!r})))"
    said = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, name: value}, capture_output=True, check=True, text=True
    )
    assert said.stdout.split() == ["0"]


@pytest.mark.slow
def test_a_launcher_that_misses_the_end_of_a_rank_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(_mpi: str, ranks: list[list[str]]) -> launch.Launch:
        return launch.Launch(["sh", "-c", '"$@"; sleep 60', "sh", *ranks[0]], {}, {})

    monkeypatch.setattr(local_ranks, "make_local_launch", blind)
    monkeypatch.setattr(launch, "FAILED_S", 0.1)
    with pytest.raises(RunError, match=r"rank 0 was killed by signal 9") as caught:
        local_ranks.run_local_ranks(1, ["sh", "-c", "kill -9 $$"], timeout_s=30)
    assert caught.value.exit_code == 128 + 9
