"""Experiments that measure. Options and tables are in ``netoffload.cli``.

A frozen dataclass describes what an *experiment* measures, and refuses what cannot be measured. The experiment's
``measure`` reports progress through a callback. Its ``findings`` are frozen dataclasses, and ``--json`` prints their
``to_record``. An experiment compares *contenders*, which take turns in *rounds*. It checks each contender's answer
before it times it (``experiment``). Findings name the versions and the machine (``netoffload.environment``).

===============  ======================================================================================================
experiment       what it measures
===============  ======================================================================================================
``allreduce``    our collectives beside MPI's and torch's on a testbed; ``rank_allreduce`` is the ranks' program
``codec``        the NIC's codecs, kernel by kernel (``codec_speed``), beside general compressors (``library_speed``)
``compressors``  the papers' compressors: ratio, variance, bias, speed (``compressor_quality``)
``ddp``          training under torch's DDP, its hooks beside ours; ``rank_ddp`` is the ranks' program
``eight_bit``    the errors of the 8-bit types, beside those printed in their paper
``nic``          TCP streams through NICs, through tunnels (``vpn_peers``) and over plain wires: see below
``overlap``      computation and communication at the same time; ``rank_overlap`` is the ranks' program
``thresholds``   the threshold of each threshold method
===============  ======================================================================================================

``nic`` sends checked streams and ping-pongs (``throughput``; both ends run ``testbed.stream_end``), counts the CPU time
(``cpu_time``) and makes figures of them (``nic_report``). ``vectors`` has the floats that experiments compress.
``jobs`` lists what ranks can be started for, and the least time that it takes. ``records`` has the ranks' results.
``advice`` predicts which exchange pays on a network, from the findings of ``advice_measure`` and ``advice_codecs``
(``netoffload advise``).
``engine_model`` and ``simulation`` are models (``netoffload model``): of a circuit, clocked cycle by cycle, and of
schedules, simulated event by event.

A new experiment is a module here, its options and tables in ``netoffload/cli/bench_NAME.py``, and a line in
:data:`EXPERIMENTS`.
"""

from typing import Final

EXPERIMENTS: Final = ("allreduce", "codec", "compressors", "ddp", "eight-bit", "nic", "overlap", "thresholds")
"""The experiments by their names in ``netoffload bench``, in the order of its help."""


def module_name(experiment: str) -> str:
    """Return the name of an experiment's module: ``eight-bit`` is in ``eight_bit``."""
    return experiment.replace("-", "_")
