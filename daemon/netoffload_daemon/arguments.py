"""The command line of a NIC, and the settings made from it."""

import argparse
import functools
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from typing import Any, Final, NoReturn

from netoffload import log
from netoffload.errors import UsageError
from netoffload.nic_options import NicProcess, options_of, types_of

EXAMPLES: Final = """\
examples:
  netoffload nic --host tap:inc0 --host-netns /run/netns/n0 --wire wire0 --wire-netns /run/netns/n0w \\
                 --codec packed --bound 8 --control /run/nic-n0.sock
  netoffload nic --host veth:host0 --wire eth1 --codec packed --threads 2 --trace frames.pcapng --trace-side wire

The host's programs mark a socket with setsockopt(IPPROTO_IP, IP_TOS, 0x28) before connecting, on both ends,
and send only float32 on it. All other traffic crosses unchanged. --tag chooses another mark, --ports narrows it.
"""


def asked_log_format(arguments: Sequence[str]) -> str:
    """Return the log format in a command line, also if the rest of the command line is wrong."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--log-format", nargs="?")
    asked = parser.parse_known_args(arguments)[0].log_format
    return asked if asked in log.FORMATS else log.FORMATS[0]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Refuse in one line, without the list of all options."""
        raise UsageError(f"{message}; see {self.prog} --help")


def parse_arguments(arguments: Sequence[str], program: str = "netoffloadd") -> NicProcess:
    """Return the settings of a command line."""
    parser = _Parser(
        prog=program,
        description="Run one NIC: compress tagged TCP segments between a host's interface and a wire.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    kinds = types_of(NicProcess)
    for field, asked in options_of(NicProcess):
        kind = kinds[field.name]
        how: dict[str, Any] = {"dest": field.name, "help": asked.help_text.replace("%", "%%")}
        if kind is bool:
            how["action"] = "store_true"
        else:
            how |= {"type": _or_none(kind) if field.default is None else kind, "metavar": asked.value}
            if field.default is MISSING:
                how["required"] = True
            else:
                how["default"] = field.default
                how["help"] += " (default %(default)s)" if field.default not in (None, "") else ""
        parser.add_argument(asked.flag, **how)
    return NicProcess(**vars(parser.parse_args(arguments)))


def _or_none(kind: type) -> Callable[[str], Any]:
    """Return a parser of values for which an empty text is no value: so the systemd unit leaves an option out."""

    @functools.wraps(kind, updated=())
    def parse(text: str) -> Any:
        return kind(text) if text else None

    return parse
