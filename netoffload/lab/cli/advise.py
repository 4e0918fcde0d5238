"""``netoffload advise``: which exchange pays on a network, by how much, and with what error."""

from __future__ import annotations

from netoffload.cli.app import app
from netoffload.lab.bench.settings import AdviseSettings
from netoffload.lab.cli.bench import command_of

app.command("advise")(command_of(AdviseSettings, __name__))
