"""A user's script under observation: which gradients are taken, when it ends, and what it leaves behind."""

import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from netoffload.cli import app
from netoffload.errors import UsageError
from netoffload.lab.training import observed

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.slow
def test_a_script_runs_as_it_is_until_it_has_made_its_steps() -> None:
    before = dict(os.environ), list(sys.path), sys.argv
    words = ("--rate", "1gbit", "--steps", "6", "--", str(EXAMPLES / "ddp.py"), "--steps", "100000")
    done = CliRunner().invoke(app, ["advise", "--json", *words], catch_exceptions=False)
    found = json.loads(done.stdout)
    floats = 64 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10
    assert found["workload"]["gradient_octets"] == 4 * floats
    assert found["workload"]["name"] == "ddp.py"
    assert 0 < found["workload"]["compute_s"] < 5
    assert found["codings"]["bounded"]["ratio"] > 1.5
    assert (dict(os.environ), list(sys.path), sys.argv) == before


GAN = """
import sys, torch
first, second = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(1000))
unused = torch.nn.Parameter(torch.ones(2))
one, other = torch.optim.SGD([first, unused], 1.0), torch.optim.SGD([second], 1.0)
for step in range(int(sys.argv[1])):
    first.grad, second.grad = torch.full((3,), float(step)), torch.ones(1000)
    one.step()
    other.step()
"""


def test_gradients_are_the_latest_of_the_optimizer_that_steps_first(tmp_path: Path) -> None:
    script = tmp_path / "gan.py"
    script.write_text(GAN)
    found = observed.observe([str(script), "99"], steps=10)
    assert found.layer_sizes == (3, 2)
    assert [list(each) for each in found.gradients] == [[step] * 3 + [0, 0] for step in (7, 8, 9, 10)]
    assert len(found.times_s) == 10
    ended = observed.observe([str(script), "4"], steps=10)  # by itself, before it had made all steps
    assert [each[0] for each in ended.gradients] == [0, 1, 2, 3]
    assert len(ended.times_s) == 3


UNFREEZING = """
import torch
parts = [torch.nn.Parameter(torch.ones(count), requires_grad=count < 4) for count in (3, 5)]
optimizer = torch.optim.SGD(parts, 1.0)
for step in range(9):
    parts[1].requires_grad_(step > 5)
    for part in parts:
        part.grad = torch.full(part.shape, float(step)) if part.requires_grad else None
    optimizer.step()
"""


def test_a_layer_that_is_frozen_is_not_sent_and_one_that_thaws_begins_anew(tmp_path: Path) -> None:
    script = tmp_path / "unfreeze.py"
    script.write_text(UNFREEZING)
    assert observed.observe([str(script)], steps=4).layer_sizes == (3,)
    thawed = observed.observe([str(script)], steps=20)
    assert thawed.layer_sizes == (3, 5)
    assert [(each.size, each[0]) for each in thawed.gradients] == [(8, 6), (8, 7), (8, 8)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise KeyError('lr')", "failed: KeyError: 'lr'"),
        ("import sys; sys.exit('no data')", "ended with 'no data' before"),
        ("print(1)", "made 0 optimizer steps"),
    ],
)
def test_a_script_that_shows_no_steps_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(UsageError, match=message):
        observed.observe([str(tmp_path / "bad.py")], steps=5)
