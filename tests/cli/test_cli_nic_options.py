"""A NIC option is one field, from which commands, documentation and the NIC's process take it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from changed_copy import ROOT, Changes, run_with

NEW_OPTION: Changes = {
    "nic_options/settings.py": (
        (
            "    bound_k: int = option(",
            """    colour: str = option(
        "--colour", "Colour of the frames", "blue", choices=("blue", "red"), unit_variable="COLOUR"
    )
    bound_k: int = option(""",
        ),
    )
}

KNOWN = """\
up True
run True
train False
demo False
argv red
nic red blue
unit COLOUR=blue --colour ${COLOUR}
docs | `--colour blue\\|red` | Colour of the frames: blue, red. | `blue` |
"""


@pytest.mark.slow
def test_a_new_option_touches_one_file(tmp_path: Path) -> None:
    assert run_with(NEW_OPTION, tmp_path, str(Path(__file__).with_name("programs") / "new_option.py")) == KNOWN


def test_what_is_generated_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "generate", "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
