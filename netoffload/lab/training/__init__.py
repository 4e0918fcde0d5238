"""Training: one run is a configuration in and a record out.

::

    parent process                                     ranks, one per node of the testbed
    --------------                                     ----------------------------------
    TrainSettings                                      worker w                    aggregator (wa, wa+c)
      | data.load, dataset.save --- .npy files --->      batch of its shard w, w+N, ...
      | Testbed                                          Replica.backward
      | testbed.run_ranks      ---- job.json   --->      door of netoffload.torch <--> sum, Replica.update
      |                                                  Replica.update (inc, inc+c)
      | make_record            <--- rank<r>.json --      meter and NIC counters before and after (rank 0)
    Record (check_traffic holds the meter and every rank's NIC against what it sent)

Runs are comparable: the same seed gives the same initial weights on every rank and with every method, and the same
batches in the same order to every worker. Gradients are averaged over the workers, by the door. Warming up moves zeros,
so nothing that is trained depends on it. After a run the parameters and buffers of all ranks are compared by their
SHA-256; a difference is an error.

Ranks are forks of a process that has imported torch and this package (``testbed.forks``), so a run begins with
its connections, not with imports. Each rank is still its own process.

**One loop** (``loop.iterate``) trains for every command: ``train`` and ``demo`` in processes, thresholds and the
papers' runs with threads as ranks, ``bench ddp`` under torch's DDP. In it a batch is drawn, its gradient computed,
exchanged and applied. The exchange is a door that torch users get (``doors``). So the figures are those of the shipped
code.

**How replicas agree** is in :mod:`netoffload.methods`; a run names a method. All methods use the same connections and
the same shaped links. Every rank counts what it sent, and the counters of its wire and its NIC must agree. If octets
took another way, the run ends with an error.

**A model is an entry of** ``models`` (its samples, the size in its paper, optimizer, schedule) and a network of
``networks``. No other code names a model. A data set has a shape and classes, and a model is built for both.

A run goes through the files in this order: ``config`` (with ``optimizers``, ``models``, ``data_spec``), ``plan``,
``run``, and in its ranks ``rank``, ``loop``, ``replica`` or ``parallel``, ``doors``, ``outcome``. Without a testbed
``inprocess`` trains with threads as ranks, also with every gradient coded once, or alone.
"""

from typing import Final

IMPORTED: Final = (
    "mpi4py.run",
    "netoffload.collectives",
    "netoffload.methods",
    "netoffload.transport.rounds.driver:prepare",
    "netoffload.lab.training.capture",
    "netoffload.lab.training.loop",
    "torch._dynamo",  # a rank's first optimizer would import it, for a second
)
"""What a fork server imports once for all ranks. These import torch and load the kernels, but not MPI, because
importing MPI initialises it. A command starts the fork server before its own imports."""
