"""The catalogue of collectives: everything about each of them in one row.

A row says what its methods do (a *plan*, whose signature and docstring are theirs), which cases are tried beside plain
MPI (``netoffload_mpi.verify``), and which calls have to name a rank that dies in them (``verify.failures``). The
blocking method and the non-blocking one are made from the row. A new collective is a row here, its algorithm in
``netoffload.collectives``, and what it announces there (``announcement.Call``).

Files: ``rows`` (what a row is), ``allreduces``, ``reductions``, ``movements``.
"""

from netoffload_mpi.catalogue.allreduces import Allreduces
from netoffload_mpi.catalogue.movements import Movements
from netoffload_mpi.catalogue.reductions import Reductions
from netoffload_mpi.catalogue.rows import CATALOGUE, Row

__all__ = ["CATALOGUE", "Allreduces", "Movements", "Reductions", "Row"]
