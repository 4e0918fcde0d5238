"""The catalogue of collectives: one row says everything about one collective.

A row has a *plan*, which gives its methods signature and docstring. It has the cases that are compared with plain MPI
(``netoffload_mpi.verify``), and the calls that must name a rank that dies in them (``verify.failures``). The blocking
method and the non-blocking one are made from the row. A new collective is a row here, its algorithm in
``netoffload.collectives``, and its number there (``announcement.Call``).

Files: ``rows`` (what a row is), ``allreduces``, ``reductions``, ``movements``.
"""

from netoffload_mpi.catalogue.allreduces import Allreduces
from netoffload_mpi.catalogue.movements import Movements
from netoffload_mpi.catalogue.reductions import Reductions
from netoffload_mpi.catalogue.rows import CATALOGUE, Row

__all__ = ["CATALOGUE", "Allreduces", "Movements", "Reductions", "Row"]
