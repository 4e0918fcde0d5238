"""The wheel, installed in a fresh environment that has only the packages of an extra."""

import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import netoffload
from netoffload.errors import EXTRAS
from tests.shared.quick_cases import by_day

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

pytestmark = pytest.mark.slow


def test_the_version_stands_in_one_place_and_its_copies_agree() -> None:
    assert "version" in PROJECT["dynamic"]
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert cited[1] == netoffload.__version__
    dated = re.findall(r"^## \[(\d.*)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert dated[0] == netoffload.__version__


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel (``.whl``) and the sdist (``.gz``)."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True)
    return {path.suffix: path for path in folder.iterdir()}


def test_wheel_and_sdist_hold_what_users_need(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built[".whl"]) as wheel:
        names = set(wheel.namelist())
        (about,) = [wheel.read(name).decode() for name in names if name.endswith("/METADATA")]
    packages = {name.split("/")[0] for name in names}
    assert packages == {
        "netoffload",
        "netoffload_daemon",
        "netoffload_mpi",
        built[".whl"].name.split("-py3")[0] + ".dist-info",
    }
    assert {f"netoffload/examples/{path.name}" for path in (ROOT / "examples").glob("*.py")} <= names
    assert {f"netoffload_daemon/monitoring/{name}" for name in ("grafana.json", "alerts.yml")} <= names
    assert {
        "netoffload/cli/commands.json",
        "netoffload/lab/cli/commands.json",
        "netoffload/lab/papers/claims.csv",
        "netoffload/dissect/netoffload.lua",
        "netoffload/py.typed",
    } <= names
    assert f"Version: {netoffload.__version__}\n" in about
    for minor in (11, 12, 13):
        assert f"Classifier: Programming Language :: Python :: 3.{minor}\n" in about
    with tarfile.open(built[".gz"]) as sdist:
        top = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "tests/test_package.py", "scripts/test"} <= top


def closure(requirements: Iterable[str], extra: str = "", found: set[str] | None = None) -> set[str]:
    """Return the distributions that requirements bring, with those that these bring."""
    found = set() if found is None else found
    for line in requirements:
        asked = Requirement(line)
        if asked.marker is not None and not asked.marker.evaluate({"extra": extra}):
            continue
        inner = {"", *asked.extras} if asked.name not in found else asked.extras
        found.add(asked.name)
        for one in inner:
            closure(importlib.metadata.requires(asked.name) or [], one, found)
    return found


class Environment:
    """A fresh environment with our wheel; the packages of others are this one's, by links."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.bin = folder / "bin"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        (self._site,) = folder.glob("lib/python*/site-packages")
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", "--no-compile", str(wheel)], check=True)

    def bring(self, extra: str | None) -> None:
        """Let exactly the packages of the core and of an extra be there."""
        for path in self._site.iterdir():
            if path.is_symlink():
                path.unlink()
        wanted = [*PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] if extra else ())]
        for name in closure(wanted):
            distribution = importlib.metadata.distribution(name)
            for part in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
                if not (self._site / part).exists():
                    (self._site / part).symlink_to(Path(str(distribution.locate_file(part))))

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A program of the environment, which sees nothing of ours but the wheel."""
        env = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.bin.parent)}
        command = [str(self.bin / words[0]), *words[1:]]
        return subprocess.run(command, env=env, cwd=self.bin.parent, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def environment(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("fresh"), built[".whl"])


def test_the_core_alone_answers(environment: Environment) -> None:
    environment.bring(None)
    assert environment.run("netoffload", "--version").stdout == f"netoffload {netoffload.__version__}\n"
    assert "Commands" in environment.run("netoffload", "--help").stdout
    example = environment.run("netoffload", "example", "ddp").stdout
    assert example == (ROOT / "examples/ddp.py").read_text()
    said = json.loads(environment.run("netoffload", "stats", "--dashboard").stdout)
    assert said["uid"] == "netoffload"
    assert environment.run("netoffloadd", "--help").returncode == 0
    have = environment.run("python", "-c", f"import importlib.util as u; print(*map(u.find_spec, {list(EXTRAS)}))")
    assert have.stdout.split() == ["None"] * len(EXTRAS)


@pytest.mark.parametrize("extra", by_day(sorted(set(EXTRAS.values())), sorted({*EXTRAS.values()} - {"engines"})))
def test_an_extra_alone_brings_what_it_is_for(environment: Environment, extra: str) -> None:
    brought = [package for package, by in EXTRAS.items() if by == extra]
    if importlib.util.find_spec(brought[0]) is None:
        pytest.skip(f"no {brought[0]}: install netoffload[{extra}]")
    environment.bring(extra)
    missing = [package for package, by in EXTRAS.items() if by != extra and (package, extra) != ("torch", "engines")]
    program = f"import importlib.util as u; import {', '.join(brought)}; print(*map(u.find_spec, {missing}))"
    ran = environment.run("python", "-c", program)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert set(ran.stdout.split()) == {"None"}
