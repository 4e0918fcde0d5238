"""Hold every ``_comp`` call against mpi4py's own, on the ranks of any MPI job.

``mpiexec -n 8 python -m mpi4py -m netoffload_mpi.verify --size 0 --size 1024``

Ranks form communicators of all the numbers of ranks that are asked for, as many as fit at a time. On each, for each
size, everything is done twice: *exact*, with values that no order of adding and no codec changes, and with the *codec*
(that of the NICs, else one that owners round by). What a ``_comp`` call leaves behind has to be, bit for bit, what
mpi4py's own call leaves behind, or what ``netoffload.collectives.reference`` says; after an allreduce all ranks compare
their digests. Ends with exit code 1 and the first difference.

Files: ``cases`` (a call and its values), ``messages`` (what is tried beside the cases in ``catalogue``), ``run``
(trying it), ``__main__`` (the command line). Two more programs: ``failures`` kills a rank in the middle of every kind
of call, and ``random_programs`` carries out random programs, which ``programs`` writes and ``program_runs`` compares;
``local_ranks`` plays ranks as threads.
"""
