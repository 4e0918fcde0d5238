"""A program that prints which commands have the NIC option ``--colour``, and its default."""

from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from netoffload.cli import app
from netoffload.lab.testbed import NicSettings, TestbedSettings, make_plan
from netoffload.lab.testbed.plan import nic_argv
from netoffload.nic_options import option_table, unit_table, unit_words
from netoffload_daemon.arguments import parse_arguments

for command in ("up", "run", "train", "demo"):
    print(command, "--colour" in CliRunner().invoke(app, [command, "--help"]).output)
colour: dict[str, Any] = {"colour": "red"}
plan = make_plan(TestbedSettings(1, nic=NicSettings(**colour)), "a", Path("/run/netoffload"))
words = nic_argv(plan, plan.nodes[0], 9)
print("argv", words[words.index("--colour") + 1])
print("nic", *(vars(parse_arguments(said))["colour"] for said in (words, ["--host", "tap:a", "--wire", "b"])))
print("unit", *(word for text in unit_words() for word in text.split() if "colour" in word.lower()))
print("unit", next(row.removeprefix("| ") for row in unit_table().splitlines() if "--colour" in row))
print("docs", next(row for row in option_table().splitlines() if "--colour" in row))
