"""``netoffload manual``: the manual pages, made from the commands."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

import netoffload
from netoffload import config
from netoffload.cli.app import app
from netoffload.errors import UsageError


@app.command()
def manual(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]", help="The command, as you type it. Default: netoffload.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write the pages of all commands into this folder, named for man."),
    ] = None,
) -> None:
    """Print the manual page of a command, or write the pages of all commands.

    Example: netoffload manual verify codec | man -l -

    Example: netoffload manual --out /usr/local/share/man/man1
    """
    root = typer.Context(typer.main.get_command(app), info_name="netoffload")
    if out is None:
        print(_page(_context_of(root, command or [])), end="")
        return
    if command:
        raise UsageError("--out writes the pages of all commands: leave out the command")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for context in _all(root):
            name = context.command_path.replace(" ", "-")
            (out / f"{name}.1").write_text(_page(context), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write to {out}: {error.strerror}") from error


def _context_of(context: Any, words: Iterable[str]) -> Any:
    """Return the context of a command below ``context``."""
    for word in words:
        group = context.command
        if not _is_group(group):
            raise UsageError(f"{context.command_path} has no command {word!r}")
        config.check_choice("command", word, tuple(group.list_commands(context)))
        context = typer.Context(group.get_command(context, word), info_name=word, parent=context)
    return context


def _is_group(command: Any) -> bool:
    return hasattr(command, "list_commands")


def _inner(context: Any) -> Iterator[Any]:
    group = context.command
    for name in group.list_commands(context) if _is_group(group) else ():
        yield typer.Context(group.get_command(context, name), info_name=name, parent=context)


def _all(context: Any) -> Iterator[Any]:
    yield context
    for inner in _inner(context):
        yield from _all(inner)


def _page(context: Any) -> str:
    """Return the page of a command in man's macros (man(7))."""
    command = context.command
    first, *paragraphs = _plain(command.help or "").split("\n\n")
    examples = [text.removeprefix("Example: ") for text in paragraphs if text.startswith("Example: ")]
    name = context.command_path.replace(" ", "-")
    lines = [f'.TH "{_roff(name.upper())}" 1 "" "netoffload {netoffload.__version__}" "netoffload"']
    lines += [".SH NAME", f"{_roff(name)} \\- {_roff(' '.join(first.split()).rstrip('.'))}"]
    lines += [
        ".SH SYNOPSIS",
        f".B {_roff(context.command_path)}",
        _roff(" ".join(command.collect_usage_pieces(context))),
    ]
    lines += [".SH DESCRIPTION"]
    for paragraph in [first, *(text for text in paragraphs if not text.startswith("Example: "))]:
        lines += [".PP", _roff(" ".join(paragraph.split()))]
    inner = list(_inner(context))
    lines += _list("COMMANDS", ((one.info_name, _plain(one.command.help or "").split("\n\n")[0]) for one in inner))
    lines += _list("OPTIONS", _options(context))
    if examples:
        lines += [".SH EXAMPLES", ".nf", *(_roff(" ".join(text.split())) for text in examples), ".fi"]
    related = [one.command_path for one in (inner or [context.parent] * (context.parent is not None))]
    if related:
        lines += [".SH SEE ALSO", ", ".join(f"\\fB{_roff(path.replace(' ', '-'))}\\fR(1)" for path in related)]
    return "\n".join(lines) + "\n"


def _options(context: Any) -> Iterator[tuple[str, str]]:
    """Yield arguments and options with their meanings; the options of ``nic`` are in the NIC's own parser."""
    if context.command.name == "nic":
        from netoffload.nic_options import NicProcess, options_of

        for field, option in options_of(NicProcess):
            default = f" [default: {field.default}]" if isinstance(field.default, str | int) and field.default else ""
            yield f"{option.flag} {option.value}".rstrip(), option.help_text + default
        return
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield record


def _list(heading: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    lines = [line for name, text in rows for line in (".TP", f"\\fB{_roff(name)}\\fR", _roff(" ".join(text.split())))]
    return [f".SH {heading}", *lines] if lines else []


def _plain(text: str) -> str:
    """Return a help text without the marks that typer reads."""
    return Text.from_markup(text).plain


def _roff(text: str) -> str:
    """Return the text as one line, escaped so that troff reads no character as a command."""
    return re.sub(r"^(?=[.'])", r"\\&", text.replace("\\", "\\e").replace("-", "\\-"))
