"""Sum over gloo as a user does on several hosts, without the interface that the testbed names."""

import os

import torch
import torch.distributed as dist

from netoffload.torch import set_rank_environment

del os.environ["GLOO_SOCKET_IFNAME"]
set_rank_environment()
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
print(os.environ.get("GLOO_SOCKET_IFNAME"), int(one))
dist.destroy_process_group()
