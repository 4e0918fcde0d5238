"""tc's classifier for classic BPF, described for pyroute2, whose own description knows only eBPF (tc-bpf(8)).

:mod:`netoffload.netlink.redirect` replaces pyroute2's module by this one; pyroute2 requires the names in it.
"""

from __future__ import annotations

from typing import Any, Final

from pyroute2.netlink.rtnl.tcmsg import sched_bpf
from pyroute2.netlink.rtnl.tcmsg.common_act import get_tca_action

INSTRUCTION_LEN: Final = 8

parent = sched_bpf.parent
fix_request = sched_bpf.fix_request


class options(sched_bpf.options):  # type: ignore[misc]  # noqa: N801, pyroute2 requires this name
    """TCA_OPTIONS of such a filter (linux/pkt_cls.h)."""

    nla_map = (
        ("TCA_BPF_UNSPEC", "none"),
        ("TCA_BPF_ACT", "bpf_act"),
        ("TCA_BPF_POLICE", "hex"),
        ("TCA_BPF_CLASSID", "uint32"),
        ("TCA_BPF_OPS_LEN", "uint16"),
        ("TCA_BPF_OPS", "cdata"),
        ("TCA_BPF_FD", "uint32"),
        ("TCA_BPF_NAME", "asciiz"),
        ("TCA_BPF_FLAGS", "uint32"),
        ("TCA_BPF_FLAGS_GEN", "uint32"),
    )


def get_parameters(asked: dict[str, Any]) -> dict[str, Any]:
    """Return TCA_OPTIONS for ``action`` and ``program`` (``struct sock_filter[]``); empty to delete a filter."""
    program = asked.get("program")
    if program is None:
        return {"attrs": []}
    return {
        "attrs": [
            ["TCA_BPF_ACT", get_tca_action(asked)],
            ["TCA_BPF_OPS_LEN", len(program) // INSTRUCTION_LEN],
            ["TCA_BPF_OPS", program],
        ]
    }
