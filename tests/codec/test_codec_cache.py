"""The cache of compiled kernels: in a folder that only its user can write, and without old files."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from netoffload.cli import app
from netoffload.compiled import jit
from netoffload.compiled.cache import IN_USE_S, KEPT_FOLDERS, KEPT_S, make_cache_dir, remove_stale
from netoffload.lab.testbed.processes import marked
from tests.shared.commands import PYTHONPATH, python

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The folders for kernels below this user's cache folder and below the temporary folder, not made yet."""
    for name in ("cache", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "cache" / "netoffload", tmp_path / "temporary" / f"netoffload-{os.geteuid()}"


def _link(place: Path) -> None:
    target = place.with_name("elsewhere")
    target.mkdir()
    place.symlink_to(target)


def _open_to_all(place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)


def _foreign(place: Path) -> None:
    place.mkdir(mode=0o755)
    os.chown(place, NOBODY, NOBODY)


unsafe = pytest.mark.parametrize(
    "make", [_link, _open_to_all, Path.touch, pytest.param(_foreign, marks=needs_root)], ids=lambda make: make.__name__
)


def test_a_new_cache_is_this_users_alone(places: tuple[Path, Path]) -> None:
    home, _ = places
    assert make_cache_dir("kernels-1") == home / "kernels-1"
    assert [path.stat().st_mode & 0o777 for path in (home, home / "kernels-1")] == [0o700, 0o700]
    assert make_cache_dir("kernels-1") == home / "kernels-1"


@unsafe
def test_a_folder_that_another_may_write_is_passed_over(
    places: tuple[Path, Path], make: Callable[[Path], None]
) -> None:
    home, temporary = places
    make(home)
    assert make_cache_dir("kernels-1") == temporary / "kernels-1"
    temporary.rename(temporary.with_name("away"))
    make(temporary)
    assert make_cache_dir("kernels-1") is None


@unsafe
def test_so_are_the_kernels_in_it(places: tuple[Path, Path], make: Callable[[Path], None]) -> None:
    home, temporary = places
    home.mkdir()
    make(home / "kernels-1")
    assert make_cache_dir("kernels-1") == temporary / "kernels-1"


@needs_root
def test_root_leaves_nothing_in_another_users_home(places: tuple[Path, Path]) -> None:
    home, temporary = places
    os.chown(home.parent, NOBODY, NOBODY)
    assert make_cache_dir("kernels-1") == temporary / "kernels-1"
    assert list(home.parent.iterdir()) == []


def test_a_user_without_home_whose_folder_was_taken_runs_without_a_cache(tmp_path: Path) -> None:
    for name in ("netoffload", f"netoffload-{os.geteuid()}"):
        _open_to_all(tmp_path / name)
    environment = {"HOME": "/nonexistent", "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    code = "from netoffload.codec import kernels; from netoffload.compiled import jit; print(jit.CACHE_DIR)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("None\n", "")


def test_old_kernels_go_and_those_in_use_stay(tmp_path: Path) -> None:
    ages_s = {"old": KEPT_S + 60, "current": KEPT_S + 60}
    ages_s |= {f"recent{count}": IN_USE_S + 60 * (count + 1) for count in range(KEPT_FOLDERS)}
    ages_s |= {f"used{count}": 0.0 for count in range(2)}
    for name, age_s in ages_s.items():
        folder = tmp_path / f"kernels-{name}"
        (folder / "codec").mkdir(parents=True)
        os.utime(folder, (time.time() - age_s,) * 2)
    (tmp_path / "other").mkdir()
    remove_stale(tmp_path / "kernels-current")
    left = {path.name.removeprefix("kernels-") for path in tmp_path.iterdir()}
    assert left == {"current", "other", "used0", "used1", *(f"recent{count}" for count in range(KEPT_FOLDERS - 2))}


@jit.inlined_with
def _half_of(value: int, is_odd: bool) -> int:
    return value // 2 + is_odd


@jit.compiled_with  # never taken from the cache
def _sum_of_halves(value: int) -> int:
    return _half_of(8, False) + _half_of(3, True) + _half_of(value, value % 2 == 1)


@pytest.mark.skipif(jit.JIT_DISABLED, reason="needs compiled kernels")
def test_constants_use_the_code_for_their_type() -> None:
    assert _sum_of_halves(5) == 4 + 2 + 3
    assert [str(kinds) for kinds in cast(Any, _half_of).signatures] == ["(int64, bool)"]


@pytest.mark.slow
@pytest.mark.skipif(jit.JIT_DISABLED, reason="needs compiled kernels")
def test_warmup_tidies_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kernels-stale", "kernels-current"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (0, 0))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(jit, "CACHE_DIR", tmp_path / "kernels-current")
    done = CliRunner().invoke(app, ["warmup"])
    assert (done.exit_code, "kernels ready" in done.stderr) == (0, True)
    assert os.listdir(tmp_path) == ["kernels-current"]


@pytest.mark.slow
@pytest.mark.skipif(jit.JIT_DISABLED, reason="needs compiled kernels")
def test_an_interrupted_warmup_ends_its_processes_without_a_traceback(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "netoffload", "warmup"]
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, "XDG_CACHE_HOME": str(tmp_path)}
    env.pop("NUMBA_CACHE_DIR", None)
    warmup = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True)
    with warmup:
        assert warmup.stderr is not None
        assert warmup.stderr.readline().startswith("netoffload: compiling kernels: ")
        while not any(tmp_path.rglob("*.nbi")):  # until a process compiles
            assert warmup.poll() is None
        os.killpg(warmup.pid, signal.SIGINT)  # as a terminal does
        assert warmup.wait(timeout=20) == 130
        assert "Traceback" not in warmup.stderr.read()
    assert marked(f"XDG_CACHE_HOME={tmp_path}") == []


@pytest.mark.slow
@pytest.mark.skipif(jit.JIT_DISABLED, reason="needs compiled kernels")
def test_kernels_that_a_full_disk_cannot_keep_run_all_the_same(tmp_path: Path) -> None:
    program = tmp_path / "twice.py"
    program.write_text(
        "import resource, signal\n"
        "from netoffload.compiled.jit import kernel\n"
        "@kernel\ndef once(value):\n    return value + 1\n"
        "@kernel\ndef twice(value):\n    return once(value) + value\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # each write fails, as on a full disk\n"
        "print(twice(20))\n"
    )
    done = python(str(program), env={"NUMBA_CACHE_DIR": str(tmp_path / "kernels")})
    said = f"netoffload: warning: compiled kernels cannot be kept in {tmp_path}/kernels: File too large\n"
    assert (done.stdout, done.stderr) == ("41\n", said)


def _cut(folder: Path) -> None:
    for index in folder.rglob("*.nbi"):
        index.write_bytes(b"")


def _swap(folder: Path) -> None:
    """Two processes that save one kernel for two types at the same time may leave this."""
    for second in folder.rglob("*.2.nbc"):
        second.write_bytes(second.with_name(second.name.replace(".2.nbc", ".1.nbc")).read_bytes())


@pytest.mark.slow
@pytest.mark.skipif(jit.JIT_DISABLED, reason="nothing is compiled")
@pytest.mark.parametrize(("damage", "warnings"), [(_cut, 1), (_swap, 0)])
def test_what_was_kept_badly_is_compiled_anew(damage: Callable[[Path], None], warnings: int, tmp_path: Path) -> None:
    program, folder = tmp_path / "program.py", tmp_path / "kernels"
    program.write_text(
        "from netoffload.compiled.jit import kernel\n@kernel\ndef twice(value):\n    return value + value\n"
        "print(twice(3), twice(0.75))\n"
    )
    said = []
    for is_damaged in (False, True, False):
        if is_damaged:
            damage(folder)
        done = python(str(program), env={"NUMBA_CACHE_DIR": str(folder)})
        said.append((done.stdout, done.stderr.count("cannot be read")))
    assert said == [("6 1.5\n", 0), ("6 1.5\n", warnings), ("6 1.5\n", 0)]
    assert len([*folder.rglob("*.2.nbc")]) == 1
