"""The product without its laboratory: a copy of the sources from which ``netoffload/lab`` is removed."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared.quick_cases import NIGHT
from tests.test_layers import SOURCES

ROOT = Path(__file__).parents[1]
QUICK_TESTS = ("wire", "test_config.py", "test_control.py", "test_log.py")
TESTS = (
    (*QUICK_TESTS, "codec", "collectives", "methods", "engine", "fuzz", "transport", "daemon", "dissect", "torch")
    if NIGHT
    else QUICK_TESTS
)
NEEDS_LAB = "netoffload.lab"
"""A test file with this text uses testbeds, and is no test of the product alone."""

Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a checkout without ``lab``."""
    folder = tmp_path_factory.mktemp("product")
    leave_out = shutil.ignore_patterns("lab", "__pycache__")
    for name in ("netoffload", "daemon", "mpi_ext"):
        shutil.copytree(ROOT / name, folder / name, ignore=leave_out)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("lab", "netns", "__pycache__"))
    for path in (folder / "tests").rglob("test_*.py"):
        if NEEDS_LAB in path.read_text(encoding="utf-8"):
            path.unlink()
    return folder


def python(product: Path, *words: str, timeout_s: float = 100, **environment: str) -> Done:
    """Run Python in the copy, which it imports instead of the installed package."""
    paths = os.pathsep.join(str(product / name) for name in ("", "daemon", "mpi_ext"))
    environment = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "120", **environment}
    return subprocess.run(
        [sys.executable, *words], cwd=product, env=environment, capture_output=True, text=True, timeout=timeout_s
    )


@pytest.mark.slow
def test_every_module_of_the_product_is_imported(product: Path) -> None:
    names = [name for name, _ in SOURCES if not name.startswith("netoffload.lab") and not name.endswith("__main__")]
    for engine in ("accelerate", "lightning", "torchft"):
        if not NIGHT or importlib.util.find_spec(engine) is None:  # they import engines, for seconds
            names.remove(f"netoffload.torch.{engine}")
    text = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(sys.modules[name])"
    done = python(product, "-c", text, *names, NUMBA_DISABLE_JIT="1")  # else some compile for this path
    assert done.returncode == 0, done.stderr
    assert str(product) in done.stdout


@pytest.mark.slow
def test_the_program_has_the_products_commands_only(product: Path) -> None:
    shown = python(product, "-m", "netoffload", "--help").stdout
    commands = set(re.findall(r"^│ ([a-z]+) ", shown, re.MULTILINE))
    assert {"nic", "stats", "doctor", "dissect"} <= commands
    assert not {"train", "bench", "reproduce"} & commands
    checks = json.loads(python(product, "-m", "netoffload", "doctor", "--json").stdout)["checks"]
    assert "root" in {check["name"] for check in checks}
    refused = python(product, "-m", "netoffload", "stats")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "path of a control socket" in refused.stderr


@pytest.mark.slow
@pytest.mark.timeout(3600 if NIGHT else 120)
def test_the_products_tests_pass(product: Path) -> None:
    words = ["-m", "pytest", "-q", "-m", "not netns and not mpi and not slow", "-p", "no:cacheprovider"]
    done = python(product, *words, *(f"tests/{name}" for name in TESTS), timeout_s=3500 if NIGHT else 110)
    assert done.returncode == 0, done.stdout[-3000:]
