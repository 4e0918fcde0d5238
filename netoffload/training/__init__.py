"""Training: one run is a configuration in and a record out.

::

    parent process                                     ranks, one per node of the testbed
    --------------                                     ----------------------------------
    TrainSettings                                      worker w                    aggregator (wa, wa+c)
      | data.load, dataset.save --- .npy files --->      batch of its shard w, w+N, ...
      | Testbed                                          Replica.backward
      | testbed.run_ranks      ---- job.json   --->      Method.step  <------------>  sum, Replica.update
      |                                                  Replica.update (inc, inc+c)
      | make_record            <--- rank<r>.json --      meter and NIC counters before and after (rank 0)
    Record (check_traffic holds the meter and every rank's NIC against what it sent)

What makes runs comparable: the same seed gives the same initial weights on every rank and with every method, and
the same batches in the same order to every worker. Gradients are averaged over the workers: the method gives their
sum, and the update divides. Warming up moves zeros, so nothing that is trained depends on it. After a run the
parameters and buffers of all ranks are compared by their SHA-256; a difference is an error, not a footnote.

**Initialisation decides whether the paper's codec can train HDC.** Its 8-bit form cannot express anything below 2^-7,
whatever the bound says. With torch's default initialisation HDC's gradients start below that, compressed runs see
zeros and stay at chance level; with He initialisation (normal, biases 0), which this package uses, they learn. The
loss scale, a term of mixed-precision training, is the other lever: gradients are multiplied by a power of two before
the method has them and divided after, which makes the error bound 2^-k / scale for the gradient itself and costs
compression ratio.

Ranks are forks of a process that has imported torch and this package (``testbed.fork_server``), so a run begins with
its connections, not with imports. Each is a process of its own all the same.

**Where the time goes.** A worker's iteration is computing (forward, backward, update) and communicating (the rest,
waiting and adding included). Buckets of gradients travel while backward goes on (``overlap``), and a record says how
long. In ``wa`` the update happens at the aggregator while workers wait; the record moves it from
communicating to computing. Ranks that share two cores compute slower than ranks that have their own: the split is
this machine's.

**How replicas agree** is :mod:`netoffload.methods`' business; a run names one. All methods go over the same
connections and the same shaped links. Every rank counts what it sent, which is held against the counters of its wire
and its NIC: a run that took another way is an error.

**Nothing that a run remembers is lost.** A rank's state is its replica (weights, buffers, optimizer), its method's
memory and the number of the iteration; batches, dropout and compressors' randomness depend on seeds and numbers alone.
So a checkpoint of these goes on bit for bit (``checkpoint``).

**A model is a file** of ``models`` with a :class:`~netoffload.training.model_spec.ModelSpec`: how it is built, the
samples that it takes, the size in its paper, optimizer, learning rates and their schedule, loss. Nothing else knows a
model by its name. A data set says its shape and classes, and a model is built for both.

Files, in the order in which a run meets them: ``config`` what is asked for, with ``optimizers`` and ``schedules`` by
their names (``choice``); ``plan`` what a series of runs will do and keep; ``data_spec`` the names of data sets,
``image_files`` and ``corpus`` what they read, ``dataset`` their arrays, ``data`` a worker's share of them;
``model_spec``, ``models``, ``layers`` and ``sequence_layers`` the networks, ``replica`` one of them over flat buffers;
``parallel`` one of which a rank has a part, ``parallel_layers`` what the parts need of each other;
``capture`` keeps gradients, ``board`` shows them; ``loop`` the iterations, ``overlap`` buckets of gradients,
``milestones`` what is due between iterations, ``checkpoint`` the state on disk; ``measure`` the meter, ``memory`` what
ranks need; ``outcome`` what a rank leaves; ``rank`` the rank's program; ``run`` the parent's side. Without a testbed:
``inprocess`` trains with threads as ranks, ``search`` finds thresholds with it, ``sample`` keeps gradients to try a
codec on, ``gradient_replicas`` computes all workers' gradients one after the other. ``gloo`` is what torch itself
would do, for `netoffload bench allreduce`, and ``ddp`` a replica under torch's DDP, for `netoffload bench ddp`.
"""
