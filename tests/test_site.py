"""The documentation site: it builds without a broken link, and generated pages follow their sources."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("mkdocstrings") is None, reason="pip install 'netoffload[docs]'"),
]


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(site)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=110)


def test_the_site_builds_and_its_made_pages_are_whole(tmp_path: Path) -> None:
    built = build(ROOT / "mkdocs.yml", tmp_path)
    assert built.returncode == 0, built.stderr
    commands = (tmp_path / "reference/commands.html").read_text()
    for words in ("up", "bench-nic", "train", "verify-codec", "example"):
        assert f'id="netoffload-{words}"' in commands
    api = (tmp_path / "reference/api.html").read_text()
    assert 'id="netoffload.torch.compress_hook"' in api
    assert re.search(r":(func|class|mod):", api) is None
    for example in (*(ROOT / "examples").glob("*.py"), *(ROOT / "examples").glob("*.ipynb")):
        assert f'id="{example.stem}"' in (tmp_path / "reference/examples.html").read_text()
    torch = (tmp_path / "guide/torch.html").read_text()
    assert 'href="../reference/examples.html#ddp"' in torch
    assert re.search(r'<(script|link|img)[^>]*(src|href)="(https?:)?//', torch) is None  # all of it comes from here


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/README.md").write_text("[gone](nowhere.md)\n")
    plain = re.sub(r"(?ms)^(hooks|plugins|nav):.*?(?=^\w|\Z)", "", (ROOT / "mkdocs.yml").read_text())
    (tmp_path / "mkdocs.yml").write_text(plain)
    broken = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert broken.returncode == 1
    assert "nowhere.md" in broken.stderr
