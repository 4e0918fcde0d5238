"""The documentation site: it builds without a broken link, and generated pages follow their sources."""

import importlib.util
import json
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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT / "mkdocs.yml", folder)
    assert built.returncode == 0, built.stderr
    return folder


def test_the_sites_made_pages_are_whole(site: Path) -> None:
    commands = (site / "reference/commands.html").read_text()
    for words in ("up", "bench-nic", "train", "verify-codec", "example"):
        assert f'id="netoffload-{words}"' in commands
    api = (site / "reference/api.html").read_text()
    assert 'id="netoffload.torch.compress_hook"' in api
    assert re.search(r":(func|class|mod):", api) is None
    for example in (*(ROOT / "examples").glob("*.py"), *(ROOT / "examples").glob("*.ipynb")):
        assert f'id="{example.stem}"' in (site / "reference/examples.html").read_text()
    cut = re.findall(r"<li><code>[\w-]+</code>: [^<]*\.\.\.</li>", commands)
    assert re.search(r"<li><code>up</code>: Build a testbed that stays up until netoffload down\.</li>", commands)
    assert cut == []
    first = (site / "index.html").read_text()
    assert 'src="lab/figures/demo.png"' in first
    assert "Machines that train one model together" in first
    torch = (site / "guide/torch.html").read_text()
    assert 'href="../reference/examples.html#ddp"' in torch
    for page in (first, torch, commands):
        assert re.search(r'<(script|link|img)[^>]*(src|href)="(https?:)?//', page) is None  # all of it comes from here


def test_the_search_works_in_a_folder(site: Path) -> None:
    index = (site / "search/search_index.js").read_text()
    assert index.startswith("var __index = {")
    assert any("oss scale" in entry["title"] for entry in json.loads(index.removeprefix("var __index = "))["docs"])
    for name in ("index.html", "guide/torch.html"):
        scripts = re.findall(r'<script src="([^"]*)"', (site / name).read_text())
        worker, bundle = (next(one for one in scripts if word in one) for word in ("iframe-worker", "bundle"))
        assert scripts.index(worker) < scripts.index(bundle)  # the bundle starts the search
        assert ((site / name).parent / worker).exists()


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/README.md").write_text("[gone](nowhere.md)\n")
    plain = re.sub(r"(?ms)^(hooks|plugins|nav):.*?(?=^\w|\Z)", "", (ROOT / "mkdocs.yml").read_text())
    (tmp_path / "mkdocs.yml").write_text(plain)
    broken = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert broken.returncode == 1
    assert "nowhere.md" in broken.stderr
