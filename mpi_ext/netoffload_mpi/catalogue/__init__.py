"""The catalogue of collectives: a row for each, from which its blocking and its non-blocking method are made.

A row is a name and a *plan*, which gives the methods signature and docstring. A new collective is a row here, its
algorithm in ``netoffload.collectives``, its number there (``announcement.Call``), and its cases in
``tests/mpi/verify/collectives.py``.

Files: ``rows`` (how methods are made), ``allreduces``, ``reductions``, ``movements``.
"""

from netoffload_mpi.catalogue.allreduces import Allreduces
from netoffload_mpi.catalogue.movements import Movements
from netoffload_mpi.catalogue.reductions import Reductions

__all__ = ["Allreduces", "Movements", "Reductions"]
