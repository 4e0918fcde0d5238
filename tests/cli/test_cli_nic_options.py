"""A NIC option is one field, from which commands, documentation and the NIC's process take it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from netoffload.nic_options import NicProcess, options_of, unit_options
from netoffload_daemon.arguments import parse_arguments
from tests.engine.changed_copy import ROOT, Changes, run_with
from tests.shared.commands import netoffload

NEW_OPTION: Changes = {
    "nic_options/settings.py": (
        (
            "    bound_k: int = option(",
            """    colour: str = option(
        "--colour", "Colour of the frames", "blue", choices=("blue", "red")
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
unit `COLOUR` | `blue` | `--colour`: Colour of the frames: blue, red. |
docs | `--colour blue\\|red` | Colour of the frames: blue, red. | `blue` |
"""


@pytest.mark.slow
def test_a_new_option_touches_one_file(tmp_path: Path) -> None:
    assert run_with(NEW_OPTION, tmp_path, str(Path(__file__).with_name("programs") / "new_option.py")) == KNOWN


def test_what_is_generated_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "generate", "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


IN_THE_FILE = {
    "CODEC": "packed",
    "BOUND": "8",
    "PACKING": "per-segment",
    "ENCAPSULATION": "ipcomp",
    "FAULT": "",
    "THREADS": "2",
    "BUSY_POLL": "50",
    "BYPASS": "user",
    "TAG": "AF12",
    "PORTS": "5000-5999,7000",
    "TRUST": "tag",
    "SOCKET_NETNS": "/run/netns/programs",
    "LOG_FORMAT": "json",
    "KEY": "/etc/netoffload/inc0.key",
    "METRICS_PORT": "9100",
    "RUN_AS": "daemon",
    "TRACE": "/run/netoffload-nic-inc0/frames.pcapng",
    "TRACE_SIDE": "wire",
}
"""A value for each variable of the unit; those that exclude others are at their default."""


def settings_of_unit(values: dict[str, str]) -> NicProcess:
    """Return what a NIC makes of the unit's command line, with the variables of a file."""
    printed = netoffload("unit", "nic").stdout.replace("%i", "inc0")
    (line,) = re.findall(r"^ExecStart=\S+ -m netoffload nic (.*)$", printed, re.MULTILINE)
    (environment,) = re.findall(r"^Environment=(.*)$", printed, re.MULTILINE)
    known = dict(word.split("=", 1) for word in environment.split())
    known |= {"WIRE": "eth1", "RUNTIME_DIRECTORY": "/run/netoffload-nic-inc0", **values}
    # systemd makes one argument of ${NAME}, also of an empty one.
    words = [re.sub(r"\$\{(\w+)\}", lambda match: known[match[1]], word) for word in line.split()]
    return parse_arguments(words)


def test_the_file_of_the_unit_sets_every_option() -> None:
    given = settings_of_unit(IN_THE_FILE)
    assert {asked.variable for _, asked in unit_options()} == set(IN_THE_FILE)
    for field, asked in unit_options():
        assert str(getattr(given, field.name)) == IN_THE_FILE[asked.variable]
    others = {asked.flag for _, asked in options_of(NicProcess)} - {asked.flag for _, asked in unit_options()}
    its_own = {"--host", "--wire", "--wire-netns", "--control", "--flow-table"}
    assert others == its_own | {"--host-netns", "--ephemeral", "--ready-fd"}


def test_what_the_file_leaves_out_or_empty_is_the_nics_default() -> None:
    empty = {asked.variable: "" for field, asked in unit_options() if field.default is None}
    for given in (settings_of_unit({}), settings_of_unit(empty)):
        for field, _ in unit_options():
            assert getattr(given, field.name) == field.default
