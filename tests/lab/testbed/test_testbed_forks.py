"""Forks of a server that has done the imports behave as new interpreters would."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from netoffload.lab.testbed.forks import ENV_FORK_SERVER, RANK_ENV, fork_server, prepared_ranks, python_argv
from netoffload.lab.training import IMPORTED
from tests.shared.commands import PYTHONPATH

DEADLINE_S = 20
OWN_ENV = {"PATH": os.defpath, **RANK_ENV}
PROGRAMS = Path(__file__).with_name("programs")
WAIT = PROGRAMS / "wait.py"


@pytest.fixture(scope="module")
def forks() -> Iterator[dict[str, str]]:
    with fork_server(["decimal", "gc:disable"], OWN_ENV) as server:
        yield server


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return tmp_path / "program.py"


def started(forks: dict[str, str], program: Path, **env: str) -> subprocess.Popen[bytes]:
    whole = {**OWN_ENV, **forks, **env}
    return subprocess.Popen(
        [*rank_argv(whole), str(program), "-x", "1"],
        env=whole,
        cwd=program.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def rank_argv(env: dict[str, str]) -> list[str]:
    return [*python_argv(env=env), "-m", "mpi4py"]


def socket_of(env: dict[str, str]) -> Path:
    return Path(json.loads(env[ENV_FORK_SERVER])["path"])


def wait_until_gone(pid: int) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while Path("/proc", str(pid)).exists():
        assert time.monotonic() < deadline_s, f"process {pid} is still there"
        time.sleep(0.01)


def pid_of(client: subprocess.Popen[bytes]) -> int:
    assert client.stdout is not None
    return int(client.stdout.readline())


def test_without_a_server_a_rank_is_an_interpreter_of_its_own() -> None:
    assert python_argv(env={}) == [sys.executable]


@pytest.mark.parametrize("code", [0, 3])
def test_a_fork_has_arguments_environment_folder_streams_and_imports(forks: dict[str, str], code: int) -> None:
    program = PROGRAMS / "say_all.py"
    client = started(forks, program, CODE=str(code), OWN="yes")
    out, err = client.communicate(timeout=DEADLINE_S)
    said = json.loads(out)
    assert client.returncode == code, err
    assert said["argv"] == [str(program), "-x", "1"]
    assert said["folder"] == str(program.parent)
    assert said["path"] == str(program.parent)
    assert said["imported"]
    assert said["called"]
    said["env"].pop("LC_CTYPE", None)  # which Python adds where there is no locale
    assert said["env"] == {**OWN_ENV, **forks, "CODE": str(code), "OWN": "yes"}
    assert said["shown"][0].startswith("NETOFFLOAD_")  # testbeds find processes by these, so they come first
    shown = dict(entry.split("=", 1) for entry in said["shown"])
    shown.pop("LC_CTYPE", None)
    assert shown == said["env"]
    assert said["server"] != os.getpid()
    assert err == b"also\n"


@pytest.mark.netns
def test_a_fork_stays_in_its_clients_chroot(forks: dict[str, str], program: Path, tmp_path: Path) -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounts need root with CAP_SYS_ADMIN")
    program.write_text("import os\nprint(os.getcwd(), os.listdir('/mnt'))\n")
    (root := tmp_path / "root").mkdir()
    words = [*rank_argv({**OWN_ENV, **forks}), str(program)]
    script = f"mount --rbind / {root} && mount -t tmpfs none {root}/mnt && touch {root}/mnt/inside && "
    script += f"""exec chroot {root} sh -c 'cd {tmp_path} && exec "$@"' sh "$@\""""
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", *words]
    env = {**OWN_ENV, **forks, "PATH": f"{os.defpath}:/usr/sbin:/sbin"}
    done = subprocess.run(argv, env=env, capture_output=True, timeout=DEADLINE_S)
    assert (done.stdout.decode(), done.stderr) == (f"{tmp_path} ['inside']\n", b"")


def test_a_rank_whose_imports_differ_is_an_interpreter_of_its_own(forks: dict[str, str], program: Path) -> None:
    program.write_text("import sys\nprint('decimal' in sys.modules)\n")
    for env, is_fork in (({}, True), ({"NUMBA_DISABLE_JIT": "1"}, False)):
        assert started(forks, program, **env).communicate(timeout=DEADLINE_S)[0] == f"{is_fork}\n".encode()


def test_an_exception_is_a_traceback_and_exit_code_1(forks: dict[str, str], program: Path) -> None:
    program.write_text("raise ValueError('so it is')\n")
    client = started(forks, program)
    _out, err = client.communicate(timeout=DEADLINE_S)
    assert client.returncode == 1
    assert err.splitlines()[-1] == b"ValueError: so it is"


@pytest.mark.parametrize(
    ("last", "code", "said"), [("", 0, b""), ("sys.exit(7)", 7, b""), ("sys.exit('so')", 1, b"so\n")]
)
def test_a_fork_ends_as_python_ends(forks: dict[str, str], program: Path, last: str, code: int, said: bytes) -> None:
    lines = (
        "import atexit, ctypes, sys, threading, time",
        "atexit.register(print, 'registered')",
        "threading.Thread(target=lambda: (time.sleep(0.1), print('joined'))).start()",
        "libc = ctypes.CDLL(None)",
        "libc.fdopen.restype = ctypes.c_void_p",
        "libc.fputs(b'by C\\n', ctypes.c_void_p(libc.fdopen(1, b'w')))",
        last,
    )
    program.write_text("\n".join(lines))
    client = started(forks, program)
    out, err = client.communicate(timeout=DEADLINE_S)
    assert (client.returncode, err) == (code, said)
    assert sorted(out.splitlines()) == [b"by C", b"joined", b"registered"]


def test_a_fork_whose_reader_is_gone_has_pythons_exit_code_for_it(forks: dict[str, str], program: Path) -> None:
    program.write_text("import sys\nsys.stdin.read()\nsys.stdout = open(1, 'w')\nprint('too late')\n")
    reader, writer = os.pipe()
    stdin, held = os.pipe()
    whole = {**OWN_ENV, **forks}
    argv = [*rank_argv(whole), str(program)]
    with subprocess.Popen(argv, env=whole, stdin=stdin, stdout=writer, stderr=subprocess.PIPE) as client:
        for descriptor in (reader, writer, stdin, held):
            os.close(descriptor)
        _, err = client.communicate(timeout=DEADLINE_S)
    assert client.returncode == 120
    assert b"forks.py" not in err


def test_a_client_that_says_nothing_does_not_keep_others_waiting(forks: dict[str, str], program: Path) -> None:
    program.write_text("print('served')\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(str(socket_of(forks)))
        assert started(forks, program).communicate(timeout=DEADLINE_S)[0] == b"served\n"


def test_descriptors_of_the_launcher_keep_their_numbers(forks: dict[str, str], program: Path) -> None:
    program.write_text("import os\nos.write(int(os.environ['PMI_FD']), b'cmd=init')\n")
    read_fd, write_fd = os.pipe()
    env = {**OWN_ENV, **forks, "PMI_FD": str(write_fd)}
    with subprocess.Popen([*rank_argv(env), str(program)], env=env, pass_fds=[write_fd]) as client:
        os.close(write_fd)
        assert client.wait(DEADLINE_S) == 0
    assert os.read(read_fd, 64) + os.read(read_fd, 64) == b"cmd=init"  # and then the end: nobody else holds it
    os.close(read_fd)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_client_that_is_ended_ends_its_fork(forks: dict[str, str], number: signal.Signals) -> None:
    with started(forks, WAIT) as client:
        pid = pid_of(client)
        client.send_signal(number)
        assert client.wait(DEADLINE_S) == -number
        wait_until_gone(pid)


def test_a_fork_that_a_signal_ends_is_said_so(forks: dict[str, str]) -> None:
    with started(forks, WAIT) as client:
        os.kill(pid_of(client), signal.SIGSEGV)
        assert client.wait(DEADLINE_S) == -signal.SIGSEGV


def test_a_fork_that_ignores_sigterm_ends_with_its_client(forks: dict[str, str]) -> None:
    with started(forks, WAIT, DEAF="yes") as client:
        pid = pid_of(client)
        client.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            client.wait(0.2)
        client.kill()
        wait_until_gone(pid)


@pytest.mark.slow
def test_with_its_owner_go_forks_and_folder() -> None:
    with contextlib.ExitStack() as stack:
        with fork_server([], OWN_ENV) as server:
            folder = socket_of(server).parent
            client = stack.enter_context(started(server, WAIT))
            pid = pid_of(client)
        wait_until_gone(pid)
        assert client.wait(DEADLINE_S) != 0
    assert not folder.exists()


@pytest.mark.parametrize("module", ["no_such_module", "tests.lab.testbed.programs.imports_nothing_known"])
def test_a_module_that_is_not_there_is_told_by_clients_alone(
    program: Path, capfd: pytest.CaptureFixture[str], module: str
) -> None:
    program.write_text("")
    with fork_server([module], OWN_ENV) as server:
        for _ in range(2):  # while it imports, and afterwards
            client = started(server, program)
            err = client.communicate(timeout=DEADLINE_S)[1]
            assert client.returncode == 1
            assert err.splitlines()[-1] == b"ModuleNotFoundError: No module named 'no_such_module'"
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_an_owner_that_is_killed_takes_forks_and_folder_with_it() -> None:
    env = {**OWN_ENV, "PYTHONPATH": PYTHONPATH}
    command = [sys.executable, str(PROGRAMS / "own_forks.py")]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        whole = {**env, ENV_FORK_SERVER: owner.stdout.readline().strip()}
        path = socket_of(whole)
        with subprocess.Popen([*rank_argv(whole), str(WAIT)], env=whole, stdout=subprocess.PIPE) as client:
            pid = pid_of(client)
            owner.kill()
            wait_until_gone(pid)
    deadline_s = time.monotonic() + DEADLINE_S
    while path.parent.exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_server_that_has_imported_all_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_FORK_SERVER, raising=False)
    with prepared_ranks(["decimal", "string"]):
        outer = os.environ[ENV_FORK_SERVER]
        with prepared_ranks(["string"]):
            assert os.environ[ENV_FORK_SERVER] == outer
        with prepared_ranks(["string", "fractions"]):
            assert os.environ[ENV_FORK_SERVER] != outer
        assert os.environ[ENV_FORK_SERVER] == outer
    assert ENV_FORK_SERVER not in os.environ
    monkeypatch.setenv(ENV_FORK_SERVER, outer)  # of a server that has ended
    with prepared_ranks(["string"]):
        assert os.environ[ENV_FORK_SERVER] != outer


@pytest.mark.slow
def test_what_ranks_of_training_share_does_not_start_mpi() -> None:
    text = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name.partition(':')[0])\n"
    text += "print('mpi4py.MPI' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", text, *IMPORTED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
