"""All options of a NIC, each defined once: a field of a dataclass, whose metadata describes it.

Everything else is made from these fields: the NIC's command line (``netoffload_daemon.arguments``), the options of
``netoffload up``, ``run``, ``train`` and ``demo`` (``netoffload.lab.cli.grouped``), the arguments that a testbed
gives to its NICs (:meth:`NicOptions.argv`), the variables of the systemd unit (:func:`unit_words`) and tables of the
docs (:func:`option_table`, :func:`unit_table`). A new option is a new field here; the engine or the daemon implements
it.

=====================  ==========================================================================================
:class:`NicOptions`    the options of any NIC; values are as people write them, so they can be kept as JSON
:class:`NicSettings`   the options of all NICs of a testbed
:class:`NicProcess`    the options of one NIC process: also its devices, its files and its sockets
=====================  ==========================================================================================

Files: ``option``, the description of a field; ``settings``, the classes, to which new options are added;
``faults``, the text of ``--fault``; ``texts``, the words for the systemd unit and the docs.
"""

from netoffload.nic_options.option import Option, options_of, types_of
from netoffload.nic_options.settings import NicOptions, NicProcess, NicSettings
from netoffload.nic_options.texts import option_table, unit_options, unit_table, unit_words

__all__ = [
    "NicOptions",
    "NicProcess",
    "NicSettings",
    "Option",
    "option_table",
    "options_of",
    "types_of",
    "unit_options",
    "unit_table",
    "unit_words",
]
