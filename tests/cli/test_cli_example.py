"""``netoffload example`` prints the programs of a checkout, as an installed wheel does."""

import json
from pathlib import Path

from netoffload.cli.example import PACKAGE
from tests.shared.commands import netoffload, refusal

FOLDER = PACKAGE.parent / "examples"


def test_the_list_has_every_example_with_what_it_is_and_how_it_starts() -> None:
    listed = json.loads(netoffload("example", "--json").stdout)["examples"]
    files = sorted(path for path in FOLDER.iterdir() if path.is_file())
    assert list(listed) == [path.stem for path in files]
    for path, said in zip(files, listed.values(), strict=True):
        assert f"examples/{path.name}" in said["start"]
        assert said["about"].endswith(".")


def test_an_example_is_printed_or_written_to_a_new_file(tmp_path: Path) -> None:
    wanted = (FOLDER / "ddp.py").read_text()
    assert netoffload("example", "ddp").stdout == wanted
    out = tmp_path / "mine.py"
    assert netoffload("example", "ddp", "--out", str(out)).returncode == 0
    assert out.read_text() == wanted
    out.write_text("mine")
    assert refusal("example", "ddp", "--out", str(out)) == f"netoffload: cannot write {out}: File exists"
    assert out.read_text() == "mine"


def test_an_unknown_example_names_those_that_are_there() -> None:
    assert "choose from accelerate_ddp, backend, codec, ddp, diloco, fsdp" in refusal("example", "nosuch")
