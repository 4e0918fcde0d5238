"""``netoffload model``: what hardware or a cluster would do, from a model."""

from __future__ import annotations

import typer

from netoffload.cli.app import app
from netoffload.lab.cli.bench import command_of
from netoffload.lab.models.settings import MODELS

model_app = typer.Typer(no_args_is_help=True, help="Model hardware that is not here.")
app.add_typer(model_app, name="model")


@model_app.callback()
def _model() -> None:
    """Model hardware that is not here."""


for _name, _settings in MODELS.items():
    model_app.command(_name)(command_of(_settings, __name__))
