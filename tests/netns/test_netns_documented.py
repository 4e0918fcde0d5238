"""The documentation's commands for root: every command works, and prints what the page shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from netoffload.compiled.progress import COMPILING
from netoffload.lab.testbed.plan import ENV_STATE_DIR
from tests.shared.documented import ROOT, Block, blocks, is_like

SECTIONS: dict[str, list[Block]] = {}
for _block in blocks():
    if _block.where == "as root":
        SECTIONS.setdefault(f"{_block.page} {_block.section}", []).append(_block)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_can_be_typed(section: str, tmp_path: Path, run_id: str) -> None:
    for name in ("docs", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, ENV_STATE_DIR: str(tmp_path / "state")}

    def shell(script: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-euo", "pipefail", "-c", re.sub(r"\bfirst\b", run_id, script)]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)

    said = ""
    try:
        for block in SECTIONS[section]:
            for script, shown in block.steps() if block.language == "console" else [(block.instead or block.text, "")]:
                done = shell(script)
                assert done.returncode == 0, f"{script}\n{done.stderr}"
                came = re.sub(f".*{COMPILING}.*\n", "", (done.stderr + done.stdout).replace(run_id, "first"))
                assert not shown or is_like(shown, came), came
                said += came
    finally:
        shell("netoffload down first || true")
    assert all(float(error) < 1e-3 for error in re.findall(r"largest error (\S+)", said))
    assert len(set(re.findall(r"relative error (\S+)", said))) <= 1  # every rank has the same bits
    assert all(0 < float(error) < 0.05 for error in re.findall(r"relative error (\S+)", said))
