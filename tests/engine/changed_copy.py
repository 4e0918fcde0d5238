"""A copy of the package with changed files; the test lists every file that the change needs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

Changes = dict[str, tuple[tuple[str, str], ...]]
"""By file below ``netoffload``: text that stands there once, and what replaces it."""


def run_with(changes: Changes, folder: Path, *words: str) -> str:
    """Change a copy of the package, run Python on it without compiling, and return what it says."""
    shutil.copytree(ROOT / "netoffload", folder / "netoffload", ignore=shutil.ignore_patterns("*.nb?", "__pycache__"))
    for name, replacements in changes.items():
        path = folder / "netoffload" / name
        text = path.read_text(encoding="utf-8")
        for old, new in replacements:
            assert text.count(old) == 1
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
    search = ":".join(map(str, (folder, ROOT / "daemon", ROOT / "mpi_ext", HERE)))
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": search, "COLUMNS": "200"}
    argv = [sys.executable, *words]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    return done.stdout + done.stderr
