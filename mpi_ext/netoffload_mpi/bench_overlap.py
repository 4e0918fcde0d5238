"""``python -m netoffload_mpi.bench_overlap``, on the ranks of any MPI job: see ``netoffload.bench.rank_overlap``."""

import sys

from netoffload.bench.rank_overlap import main

if __name__ == "__main__":
    main(sys.argv[1:])
