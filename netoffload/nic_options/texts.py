"""The words about options in the systemd unit and in the docs."""

from __future__ import annotations

from dataclasses import MISSING

from netoffload.nic_options.option import options_of
from netoffload.nic_options.settings import NicProcess


def unit_words() -> tuple[str, str]:
    """Return the systemd unit's environment with its defaults, and the arguments that pass it to the NIC."""
    said = [(field, asked) for field, asked in options_of(NicProcess) if asked.unit_variable]
    environment = " ".join(f"{asked.unit_variable}={field.default}" for field, asked in said)
    return environment, " ".join(f"{asked.flag} ${{{asked.unit_variable}}}" for _, asked in said)


def option_table() -> str:
    """Return the rows of the table of options in the docs, in Markdown."""
    rows = ["| option | meaning | default |", "| --- | --- | --- |"]
    for field, asked in options_of(NicProcess):
        words = " ".join(filter(None, (asked.flag, asked.value.replace("|", "\\|"))))
        has_default = field.default is not MISSING and str(field.default) not in ("", "None", "False")
        default = f"`{field.default}`" if has_default else ""
        meaning = " ".join(filter(None, (asked.help_text, asked.more)))
        rows.append(f"| `{words}` | {meaning} | {default} |")
    return "\n".join(rows) + "\n"
