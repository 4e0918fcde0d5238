"""Experiments that measure. Each is a command of ``netoffload bench``, made from its declaration.

``settings`` has a frozen dataclass for every experiment: options, help, and the experiment's class
(``netoffload.lab.declared``). The class refuses what cannot be measured. Its ``measure`` reports progress through a
callback. Its ``findings`` are frozen dataclasses, from which the JSON and the tables are made. An experiment compares
*contenders*, which take turns in *rounds* (``experiment``). It checks each contender's answer before it times it.
Findings name the versions and the machine (``netoffload.lab.machine``).

===============  ======================================================================================================
experiment       what it measures
===============  ======================================================================================================
``allreduce``    our collectives beside MPI's and torch's on a testbed; ``rank_allreduce`` is the ranks' program
``codec``        the NIC's codecs, kernel by kernel, beside general compressors
``compressors``  the papers' compressors: ratio, variance, bias, speed
``ddp``          training under torch's DDP, its hooks beside ours; ``rank_ddp`` is the ranks' program
``eight_bit``    the errors of the 8-bit types, beside those printed in their paper
``nic``          TCP streams through NICs, through a tunnel (``vpn_peers``) and over plain wires
``overlap``      computation and communication at the same time; ``rank_overlap`` is the ranks' program
``thresholds``   the threshold of each threshold method
===============  ======================================================================================================

``jobs`` lists what ranks can be started for, and has what they leave. ``advice`` measures what ``netoffload advise``
predicts from (``netoffload.lab.models.advice``).

A new experiment is a module here, and its settings in ``settings``.
"""
