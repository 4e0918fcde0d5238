"""``netoffload bench``, ``model``, ``advise``: commands that are made from settings (``netoffload.lab.declared``)."""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from netoffload.cli.app import app, console, notes, progress_bar
from netoffload.lab.bench.settings import EXPERIMENTS, AdviseSettings
from netoffload.lab.cli.figures import drawn, report_on_exit
from netoffload.lab.cli.grouped import shows_settings
from netoffload.lab.declared import Experiment, Finding, Settings, Table
from netoffload.lab.models.settings import MODELS


def command_of(settings: type[Settings]) -> Callable[..., None]:
    """Return the command of a class of settings: it runs their experiment, and prints the findings."""

    def command(
        asked: Any, as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False
    ) -> None:
        path = getattr(asked, "figure", None)
        if path is not None:
            from netoffload.lab.results import check_figure

            check_figure(path)
        experiment = asked.prepared()
        run(experiment, as_json=as_json)
        if path is not None and (found := experiment.findings(None)) is not None:
            found.draw(path)
            notes.print(f"the figure is in {path}", highlight=False)

    command.__doc__ = settings.__doc__
    command.__annotations__["asked"] = settings
    return shows_settings(command)


def run(experiment: Experiment[Finding], *, as_json: bool) -> None:
    """Measure, then print the findings; if an error or a signal ends measuring, print the findings up to then."""

    def tell(reason: str | None) -> None:
        if (found := experiment.findings(reason)) is None:
            return
        if as_json:
            print(json.dumps(found.to_record(), indent=2))
            return
        for part in found.shown():
            if isinstance(part, Table):
                console.print(drawn(part))
            else:
                console.print(part, highlight=False, markup=False, soft_wrap=True)
        for remark in found.remarks():
            notes.print(remark, highlight=False, markup=False)

    with report_on_exit(tell), progress_bar() as progress:
        experiment.measure(progress)


def _add_group(name: str, summary: str, members: Mapping[str, type[Settings]]) -> None:
    def callback() -> None:
        pass

    callback.__doc__ = summary
    group = typer.Typer(no_args_is_help=True)
    group.callback()(callback)
    for member, settings in members.items():
        group.command(member)(command_of(settings))
    app.add_typer(group, name=name)


_add_group("bench", "Time collectives over emulated links, codecs, and NICs.", EXPERIMENTS)
_add_group("model", "Model hardware that is not here.", MODELS)
app.command("advise")(command_of(AdviseSettings))
