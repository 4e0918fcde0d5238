"""Compare every ``_comp`` call with mpi4py's own, on the ranks of any MPI job.

``mpiexec -n 8 python -m mpi4py -m tests.mpi.verify --size 0 --size 1024``

The ranks form a communicator of each number in --ranks. Each communicator tries each size twice: *exact*, with values
that no order of adding and no codec changes, and with the *codec* (of the NICs, else one by which owners round). The
result of a ``_comp`` call must have the bits that mpi4py's own call leaves, or that
``netoffload.collectives.reference`` computes. After an allreduce all ranks compare their digests. At the first
difference the program prints it and ends with exit code 1.

Files: ``cases`` (a call and its values), ``collectives`` and ``messages`` (all of them),
``run`` (trying them), ``__main__`` (the command line). Two more programs: ``lost_rank`` loses a rank in the middle of
every kind of call (``failures`` is its rank). ``random_programs`` carries out random programs, which
``programs`` writes, and compares the results; ``local_ranks`` runs ranks as threads.
"""
