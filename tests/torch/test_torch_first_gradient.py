"""A state whose hook never runs says why, once: after 100 optimizer steps, or when the program ends."""

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from netoffload.errors import UsageError
from netoffload.torch import CompressionState, compress_hook, first_gradient
from netoffload.torch.first_gradient import STEPS_MAX, FirstGradient

ENDS_EARLY = """
import torch
from netoffload.torch import CompressionState
unused, required, off = CompressionState(), CompressionState(require=True), CompressionState(offload="off")
before = torch.optim.SGD([torch.zeros(1)], 0.1)
before.step()
after = CompressionState()
del unused, after
print("trained", end="")
"""


@pytest.fixture
def wrapped() -> Iterator[DistributedDataParallel]:
    for state in list(first_gradient._waiting):  # of other tests
        state.came()
    gc.collect()  # their models
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield DistributedDataParallel(torch.nn.Linear(3, 2))
    dist.destroy_process_group()


def step(times: int) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], 0.1)
    for _ in range(times):
        optimizer.step()


@pytest.mark.slow
def test_a_hook_that_nobody_calls_is_one_line_with_the_likely_reason(
    wrapped: DistributedDataParallel, capsys: pytest.CaptureFixture[str]
) -> None:
    lost, bypassed, seen = CompressionState(), CompressionState(), CompressionState(offload="inline")
    wrapped.register_comm_hook(bypassed, compress_hook)
    other = DistributedDataParallel(torch.nn.Linear(3, 2))
    other.register_comm_hook(seen, compress_hook)
    other(torch.ones(1, 3)).sum().backward()
    with wrapped.no_sync():
        wrapped(torch.ones(1, 3)).sum().backward()
    capsys.readouterr()  # what the kernels said that were compiled
    step(STEPS_MAX - 1)
    assert not capsys.readouterr().err
    step(STEPS_MAX)
    said = capsys.readouterr().err.splitlines()
    lead = f"netoffload: warning: no gradient reached a CompressionState in {STEPS_MAX} optimizer steps"
    assert all(line.startswith(lead) for line in said)
    assert "no DistributedDataParallel has it" in said[0]
    assert said[1].endswith("the wrapped model was not called, or only inside no_sync()")
    assert len(said) == 2
    seen.close()
    del lost


def test_the_end_of_the_wait_disturbs_no_hook_of_others() -> None:
    seen: list[int] = []
    state = CompressionState()
    hook = register_optimizer_step_post_hook(lambda *_: seen.append(1))
    step(STEPS_MAX + 1)
    hook.remove()
    assert len(seen) == STEPS_MAX + 1
    del state


def test_threads_that_give_up_at_the_same_time_say_it_once() -> None:
    first = FirstGradient(require=True)
    assert "no gradient reached a CompressionState" in first.give_up()
    assert first.give_up() == ""


def test_a_required_hook_that_nobody_calls_is_an_error() -> None:
    required = CompressionState(require=True)
    step(STEPS_MAX - 1)
    with pytest.raises(UsageError, match="no gradient reached a CompressionState"):
        step(1)
    step(STEPS_MAX)
    assert required.first is not None


@pytest.mark.slow
def test_a_program_that_ends_earlier_says_so_and_fails_if_the_hook_was_required() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS_EARLY], capture_output=True, text=True, timeout=60, check=False)
    warning, error = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "trained")
    line = "no gradient reached a CompressionState in 1 optimizer steps, so none was compressed: "
    assert warning.startswith(f"netoffload: warning: {line}there is no DistributedDataParallel")
    assert error.startswith(f"netoffload: {line}")
