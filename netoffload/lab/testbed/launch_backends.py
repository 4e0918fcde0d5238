"""The launchers of ranks, two MPIs and torchrun, as command lines and environments.

MPICH starts every rank through the node's entry command. PMI runs over an inherited descriptor, so ``mpiexec`` stays
outside of the nodes, and the ranks need only the data network::

    mpiexec  -n 1 <enter n0> program  :  -n 1 <enter n1> program  :  ...

Open MPI 5 (PRRTE) starts a daemon per node, through an agent that takes the place of ssh, and the daemons call back to
it. So it runs on the first node, the agent enters the others, and what the daemons say crosses the data network: some
kilobytes when ranks start and end::

    <enter n0> prterun  --host n0 -n 1 program  :  --host n1 -n 1 program        n0: rank 0
                  └── agent n1 "prted ..." = <enter n1> sh -c "prted ..."        n1: prted ── rank 1

torchrun has an agent per node, but starts only one. So ``launch_agents`` starts them all, and ends when one of them has
failed. The agents meet at the first node's address, over the data network as well::

    launch_agents  <enter n0> torchrun --node-rank 0 program      n0: agent ── rank 0
              └──  <enter n1> torchrun --node-rank 1 program      n1: agent ── rank 1

No launcher may avoid the wire or bias a comparison. So there is no shared memory between nodes, only the data interface
is used, and the settings name the Allreduce algorithm. Each value below has its reason beside it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from netoffload.config import check_choice
from netoffload.errors import SystemRefusedError, TestbedError
from netoffload.lab.testbed import launch_agents
from netoffload.lab.testbed.build import Testbed
from netoffload.lab.testbed.plan import NodePlan

TORCHRUN: Final = "torchrun"
MPIS: Final = ("mpich", "openmpi")
LAUNCHERS: Final = (*MPIS, TORCHRUN)

ENV_OPENMPI: Final = "NETOFFLOAD_OPENMPI"
"""Environment variable with the folder of Open MPI, if :func:`find_openmpi` does not find it without."""

_OPENMPI_BESIDE: Final = Path(sys.prefix, "openmpi")

MPICH_ENV: Final = {
    "MPIR_CVAR_NOLOCAL": "1",  # no two ranks on one node, whatever their host names say
    "MPIR_CVAR_CH4_NETMOD": "ofi",  # UCX would look for shared memory first
    "FI_PROVIDER": "tcp",
}
MPICH_DEFAULT_ENV: Final = {
    "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring",  # the automatic choice varies by 30 % at some sizes
}

OPENMPI_LOCAL_ENV: Final = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",  # only root enters namespaces
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",  # ranks share cores, and each node seems to have them all
}
OPENMPI_ENV: Final = {
    **OPENMPI_LOCAL_ENV,
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "tcp,self",  # no shared memory, and no second of looking for other fabrics
    "OMPI_MCA_btl_tcp_flags": "send",  # by default a pair sends its large messages one direction after the other
    "PRTE_MCA_hwloc_default_binding_policy": "none",  # each daemon would bind its rank to the first core
}
OPENMPI_DEFAULT_ENV: Final = {
    "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
    "OMPI_MCA_coll_tuned_allreduce_algorithm": "4",  # ring; the automatic choice took up to twice as long
}

TORCHRUN_DEFAULT_ENV: Final = {
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # it warns of the host names that it cannot look up
}
AGENTS_PORT: Final = "29500"
"""Port at which torchrun's agents meet: torchrun's default."""

REMARKS: Final = {"openmpi": (b"plm:ssh: Warning: setpgid",)}
"""Lines of a launcher to leave out: PRRTE's parent and child both move the child to a new group, and one may fail."""

AGENT: Final = """\
#!/bin/sh
# Takes the place of ssh for PRRTE: agent [options] NODE SHELL-COMMAND...
while case "$1" in -*) true ;; *) false ;; esac; do shift; done
node="$1" && shift
case "$node" in
{cases}
*) echo "this testbed has no node $node" >&2; exit 1 ;;
esac
"""


@dataclass(frozen=True)
class RankPlace:
    """One rank to start: its node, the variables that only this rank gets, and its program."""

    node: NodePlan
    env: Mapping[str, str]
    argv: Sequence[str]


@dataclass(frozen=True)
class Launch:
    """A command that starts all ranks. Its environment needs ``env``; the user's values win over ``default_env``."""

    argv: list[str]
    env: dict[str, str]
    default_env: dict[str, str]


def check_launcher(mpi: str) -> None:
    """Refuse a missing launcher at once, instead of failing when the testbed is up.

    Raises:
        UsageError: the name is not in :data:`LAUNCHERS`.
        SystemRefusedError: the launcher is not installed; the message says how to get it.
    """
    check_choice("launcher", mpi, LAUNCHERS)
    if mpi == TORCHRUN and find_spec("torch") is None:
        raise SystemRefusedError("torch is missing: pip install 'netoffload[train]'")
    if mpi == "mpich" and find_mpiexec() is None:
        raise SystemRefusedError("MPICH is missing: pip install 'netoffload[mpi]'")
    if mpi == "openmpi" and find_openmpi() is None:
        given = os.environ.get(ENV_OPENMPI)
        raise SystemRefusedError(
            f"{given} holds no Open MPI 5: set {ENV_OPENMPI} to the folder whose bin/prterun starts it"
            if given
            else f"Open MPI 5 is missing: pip install --ignore-installed --prefix {_OPENMPI_BESIDE} openmpi"
        )


def make_launch(mpi: str, bed: Testbed, ranks: Sequence[RankPlace]) -> Launch:
    """Return the command that starts one rank per place, in this order.

    Args:
        mpi: name in :data:`LAUNCHERS`; :func:`check_launcher` says which errors are raised.
        bed: a running testbed; Open MPI's agent is written into a scratch folder of it.
        ranks: at least one.
    """
    check_launcher(mpi)
    make = {"mpich": _mpich, "openmpi": _openmpi, TORCHRUN: _torchrun}[mpi]
    return make(bed, ranks)


def make_local_launch(mpi: str, programs: Sequence[Sequence[str]]) -> Launch:
    """Return the command that starts one rank per program on this machine, as a user would: with shared memory.

    Args:
        mpi: name in :data:`MPIS`; :func:`check_launcher` says which errors are raised.
        programs: at least one; there may be more than cores.
    """
    check_choice("MPI", mpi, MPIS)
    check_launcher(mpi)
    ranks = [word for program in programs for word in (":", "-n", "1", *program)][1:]
    if mpi == "mpich":
        return Launch([str(find_mpiexec()), *ranks], {}, {})
    prefix = find_openmpi()
    assert prefix is not None
    command = [*_prterun(prefix), "--map-by", ":OVERSUBSCRIBE", *ranks]
    return Launch(command, {**OPENMPI_LOCAL_ENV, **_openmpi_homes(prefix)}, {})


def find_mpiexec() -> Path | None:
    """Return MPICH's launcher: the one beside this interpreter (PyPI's ``mpich``), else the one on PATH."""
    beside = Path(sys.executable).parent / "mpiexec.hydra"
    if beside.exists():
        return beside
    found = shutil.which("mpiexec.hydra")
    return None if found is None else Path(found)


def find_openmpi() -> Path | None:
    """Return the folder of an Open MPI 5: ``$NETOFFLOAD_OPENMPI``, else ``openmpi`` in this environment, else on PATH.

    It cannot be in this environment itself, where MPICH is: both have an ``mpiexec`` and a ``libmpi.so``. Version 5 has
    the launcher ``bin/prterun``; older versions are started differently. mpi4py's wheel can use its library,
    ``lib/libmpi.so.40``, as well as MPICH's.
    """
    on_path = shutil.which("prterun")
    places = [_OPENMPI_BESIDE, *([Path(on_path).resolve().parents[1]] if on_path else [])]
    if given := os.environ.get(ENV_OPENMPI):
        places = [Path(given)]
    for prefix in places:
        if (prefix / "bin/prterun").exists() and _libmpi(prefix) is not None:
            return prefix.absolute()
    return None


def _mpich(bed: Testbed, ranks: Sequence[RankPlace]) -> Launch:
    mpiexec = find_mpiexec()
    assert mpiexec is not None
    command = [str(mpiexec)]
    for number, rank in enumerate(ranks):
        command += [":"] if number > 0 else []
        command += ["-n", "1", *(word for name, value in rank.env.items() for word in ("-env", name, value))]
        command += bed.entry_argv(rank.node, rank.argv)
    return Launch(command, {**MPICH_ENV, "FI_TCP_IFACE": ranks[0].node.device}, MPICH_DEFAULT_ENV)


def _openmpi(bed: Testbed, ranks: Sequence[RankPlace]) -> Launch:
    prefix = find_openmpi()
    assert prefix is not None
    command = _prterun(prefix)
    for number, rank in enumerate(ranks):
        command += [":"] if number > 0 else []
        command += ["--host", rank.node.name, "-n", "1"]
        command += ["/usr/bin/env", *(f"{name}={value}" for name, value in rank.env.items()), *rank.argv]
    device = ranks[0].node.device
    env = {
        **OPENMPI_ENV,
        **_openmpi_homes(prefix),
        "OMPI_MCA_btl_tcp_if_include": device,
        "PRTE_MCA_prte_if_include": device,
        "PRTE_MCA_plm_ssh_agent": str(_write_agent(bed)),
    }
    return Launch(bed.entry_argv(ranks[0].node, command), env, OPENMPI_DEFAULT_ENV)


def _torchrun(bed: Testbed, ranks: Sequence[RankPlace]) -> Launch:
    first = ranks[0].node
    common = ["--nnodes", str(len(ranks)), "--nproc-per-node", "1", "--no-python"]
    common += ["--master-addr", first.address, "--master-port", AGENTS_PORT]
    agents = []
    for number, rank in enumerate(ranks):
        agent = [sys.executable, "-m", "torch.distributed.run", "--node-rank", str(number), *common]
        own = ["/usr/bin/env", *(f"{name}={value}" for name, value in rank.env.items())]
        agents.append(bed.entry_argv(rank.node, [*agent, *own, *rank.argv]))
    return Launch([sys.executable, "-I", "-S", launch_agents.__file__, json.dumps(agents)], {}, TORCHRUN_DEFAULT_ENV)


def _prterun(prefix: Path) -> list[str]:
    return [str(prefix / "bin/prterun"), "--personality", "ompi"]


def _openmpi_homes(prefix: Path) -> dict[str, str]:
    # A wheel is not installed where it was built, so Open MPI needs its paths.
    homes = dict.fromkeys(("OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX"), str(prefix))
    return {**homes, "MPI4PY_LIBMPI": str(_libmpi(prefix))}


def _libmpi(prefix: Path) -> Path | None:
    for folder in ("lib", "lib64"):
        if (path := prefix / folder / "libmpi.so.40").exists():
            return path
    return None


def _write_agent(bed: Testbed) -> Path:
    path = bed.make_scratch() / "agent"
    enter = {node: shlex.join(bed.entry_argv(node, ["/bin/sh", "-c"])) for node in bed.plan.nodes}
    cases = "\n".join(f'{node.name}|{node.address}) exec {words} "$*" ;;' for node, words in enter.items())
    try:
        path.write_text(AGENT.format(cases=cases), encoding="utf-8")
        path.chmod(0o700)
    except OSError as error:
        raise TestbedError(f"cannot write {path}: {error.strerror}") from error
    return path
