"""``python -m netoffload_mpi.bench``, on the ranks of any MPI job: see ``netoffload.bench.rank_allreduce``."""

import sys

from netoffload.bench.rank_allreduce import main

if __name__ == "__main__":
    main(sys.argv[1:])
