"""Experiments that measure: what is timed, checked and reported, without a word about options or tables.

An *experiment* is asked for with a frozen dataclass, which refuses what cannot be measured. Its ``measure`` reports
what begins through a callback, its ``findings`` are frozen dataclasses, and their ``to_record`` is what ``--json``
prints. What is compared are *contenders*, which take turns in *rounds*; nothing is timed before its answer was checked
(``experiment``). Findings name the versions and the machine (``netoffload.environment``).

===============  ======================================================================================================
experiment       what it measures
===============  ======================================================================================================
``allreduce``    our collectives beside MPI's and torch's on a testbed; ``rank_allreduce`` is the ranks' program
``codec``        the NIC's codecs, kernel by kernel (``codec_speed``), beside general compressors (``library_speed``)
``compressors``  the papers' compressors: ratio, variance, bias, speed (``compressor_quality``)
``ddp``          training under torch's DDP, its hooks beside ours; ``rank_ddp`` is the ranks' program
``eight_bit``    the errors of the 8-bit types, beside those printed in their paper
``nic``          TCP streams through NICs, through tunnels (``vpn_peers``) and plain: see below
``overlap``      computation and communication at the same time; ``rank_overlap`` is the ranks' program
``thresholds``   the threshold of each threshold method
===============  ======================================================================================================

``nic`` sends checked streams and ping-pongs (``throughput``; ``endpoint`` runs at either end), counts the CPU time
(``cpu_time``) and makes figures of them (``nic_report``). ``vectors`` are the floats that experiments compress.
``jobs`` are what ranks are started for, and how long that takes at least; ``records`` are what they leave.
``advice`` predicts which exchange pays on a network, from what ``advice_measure`` and ``advice_codecs`` find:
``netoffload advise``.
``engine_model`` and ``simulation`` are no experiments but models, of a circuit clocked cycle by cycle and of schedules
event by event: ``netoffload model``.

A new experiment is a module here, its options and tables in ``netoffload/cli/bench_NAME.py``, and a line in
:data:`EXPERIMENTS`.
"""

from typing import Final

EXPERIMENTS: Final = ("allreduce", "codec", "compressors", "ddp", "eight-bit", "nic", "overlap", "thresholds")
"""The experiments by the names that ``netoffload bench`` has for them, in the order of its help."""


def module_name(experiment: str) -> str:
    """Return the name of an experiment's module: ``eight-bit`` is in ``eight_bit``."""
    return experiment.replace("-", "_")
