"""What a NIC can be asked, once: every field of a dataclass is an option, and its metadata is all there is to say.

The NIC's own command line, the options of ``netoffload up``, ``run``, ``train`` and ``demo``, the arguments that a
testbed hands to its NICs, the variables of the systemd unit and the table in ``docs/guide/nic.md`` are made from these
fields (``netoffload_daemon.arguments``, ``netoffload.cli.nic_parameters``, :meth:`NicOptions.argv`, :func:`unit_words`,
:func:`option_table`). A new option is a new field here; what it does is the engine's business.

=====================  ==========================================================================================
:class:`NicOptions`    what any NIC can be asked; values are as people write them, so they can be kept as JSON
:class:`NicSettings`   what every NIC of a testbed is asked
:class:`NicProcess`    what one NIC process is asked: also its devices, and its files and sockets
=====================  ==========================================================================================

Files: ``option`` what a field says about itself; ``settings`` the classes, where a new option goes; ``texts`` what the
systemd unit and the docs say.
"""

from __future__ import annotations

from netoffload.nic_options.option import Option, options_of, types_of
from netoffload.nic_options.settings import NicOptions, NicProcess, NicSettings
from netoffload.nic_options.texts import option_table, unit_words

__all__ = [
    "NicOptions",
    "NicProcess",
    "NicSettings",
    "Option",
    "option_table",
    "options_of",
    "types_of",
    "unit_words",
]
