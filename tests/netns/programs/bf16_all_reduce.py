"""Time all_reduce of 25 MB of bf16 by torch's backend; rank 0 prints the octets out of its interface too, in JSON.

netoffload run -n 4 --rate 1gbit --offload inline --launcher torchrun -- tests/netns/programs/bf16_all_reduce.py
"""

import json
import os
import statistics
import time

import torch
import torch.distributed as dist

from netoffload import control
from netoffload.config import ENV_METER
from netoffload.torch.backend_group import BackendOptions

LENGTH = 12_500_000
REPEAT = 5

dist.init_process_group("netoffload")
rank = dist.get_rank()
values = (torch.randn(LENGTH, generator=torch.Generator().manual_seed(rank)) * 0.002).bfloat16()
by_exact = dist.new_group(pg_options=BackendOptions(codec="exact"))


def sent() -> int:
    return int(control.request(os.environ[ENV_METER], "wires")["nodes"][0]["tx_octets"])


def measured(vector: torch.Tensor, group: dist.ProcessGroup | None = None) -> tuple[dict[str, float], torch.Tensor]:
    """Return MB and the median ms of an all-reduce, and the sum."""
    total, times_s, octets = vector.clone(), [], 0
    for _ in range(REPEAT + 1):  # the first one connects
        total.copy_(vector)
        dist.barrier()
        before = sent()
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(total, group=group)
        times_s.append(time.perf_counter() - start)
        dist.barrier()
        octets = sent() - before
    return {"MB": octets / 1e6, "ms": 1e3 * statistics.median(times_s[1:])}, total


found = {}
found["widened"], _ = measured(values.float())
found["bf16"], plain = measured(values)
found["bf16 by exact"], coded = measured(values, by_exact)
found["25 MB of float32"], _ = measured(values[: LENGTH // 2].float())
assert torch.equal(plain.view(torch.int16), coded.view(torch.int16)), "exact changed a bit"
if rank == 0:
    print(json.dumps({name: {unit: round(each, 1) for unit, each in one.items()} for name, one in found.items()}))
dist.destroy_process_group()
