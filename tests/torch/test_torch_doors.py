"""The packages for torch on real ranks: replicas agree, runs go on to the bit, errors name the lost rank; restarts."""

import copy
import io
import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from netoffload.errors import UsageError
from netoffload.torch import CompressionState, DistributedOptimizer, Options, Outer, Periodic
from netoffload.torch.optimizer import _saved
from netoffload.transport.rendezvous.launchers import set_rank_environment
from tests.shared.ports import free_port
from tests.shared.quick_cases import by_day
from tests.torch.launcher import Launcher

PROGRAM = Path(__file__).with_name("programs") / "all_examples.py"
EXAMPLES = Path(__file__).parents[2] / "examples"


def found_by(launcher: Launcher, *scenarios: str) -> dict[str, dict[int, Any]]:
    done = launcher.run("programs.doors_ranks", *scenarios)
    assert done.returncode == 0, done.stderr
    return {scenario: dict(ranks) for scenario, ranks in json.loads(done.stdout).items()}


@pytest.mark.slow
def test_replicas_agree_and_a_resumed_run_goes_on_bit_for_bit(launcher: Launcher) -> None:
    found = found_by(launcher, "doors", "pickled")
    assert all(whole == rest and same for whole, rest, same in found["pickled"].values())
    by_rank = found["doors"]
    assert by_rank.keys() == {0, 1, 2}
    by_door = list(zip(*(by_rank[rank] for rank in range(3)), strict=True))
    assert len(by_door) == 10
    for ranks in by_door:
        assert len({digest for whole, rest, *_ in ranks for digest in (whole, rest)}) == 1
    assert len({ranks[0][0] for ranks in by_door}) == 10  # none of them is another one's
    scales = [ranks[0][3] for ranks in by_door]
    assert scales[0] > 1  # a power of two per bucket
    assert by_door[0][0][2] > 2  # octets that were not sent
    assert by_door[3][0][2] > 3
    assert by_door[8][0][2] > 10


@pytest.mark.slow
def test_copies_go_on_bit_for_bit_and_complex_gradients_are_averaged(launcher: Launcher) -> None:
    found = found_by(launcher, "copied", "complex_layers")
    assert found == {
        "copied": dict.fromkeys(range(3), [True] * 6),
        "complex_layers": dict.fromkeys(range(3), [True] * 3),
    }


@pytest.mark.slow
def test_ranks_that_die_or_refuse_are_errors_that_say_so(launcher: Launcher) -> None:
    found = found_by(launcher, "death", "refusal")
    assert found["death"].keys() == {0, 2}
    assert all("PeerLostError: rank 1 died" in error for error in found["death"].values())
    assert "the gradient is not finite" in found["refusal"][1]
    assert all("rank 1 refuses" in found["refusal"][rank] for rank in (0, 2))


@pytest.mark.slow
@pytest.mark.parametrize("size", by_day([2, 3, 4], [3]))
def test_halves_are_summed_in_float32_rounded_once_and_travel_as_they_are(launcher: Launcher, size: int) -> None:
    """Through every door: the bits of the float32 sum, rounded once, from half of float32's octets."""
    by_rank = launcher.by_rank("programs.halves_ranks", size).values()
    assert len(by_rank) == size
    for one in zip(*(found.pop("weights") for found in by_rank), strict=True):
        assert all(keeps_bits for keeps_bits, _ in one)
        assert sum(share < 0.9 for _, share in one) == size - 1  # the last one of the chain sends nothing
    for found in by_rank:
        for dtype, (backend, *doors) in found.items():
            for is_sum, share in (backend, *doors):
                assert is_sum, found
                assert share <= 0.51, found
            assert dtype != "torch.bfloat16" or backend[1] < 0.45  # `exact` takes less than 16 bits


@pytest.mark.slow
def test_what_would_let_replicas_differ_is_refused(launcher: Launcher) -> None:
    said = found_by(launcher, "unlike")["unlike"]
    assert said.keys() == {0, 1, 2}
    for optimizer, periodic, *saved in said.values():
        learns = "a parameter of shape (160, 40) learns, and was frozen when {} was made"
        assert learns.format("DistributedOptimizer") in optimizer
        assert learns.format("Periodic") in periodic
        was = "the state was saved with a codec and error feedback, this run has "
        assert [was + now in one for now, one in zip(("qsgd", "fp16", "a codec"), saved, strict=True)] == [True] * 3


@pytest.mark.slow
def test_doubles_and_sparse_gradients_are_means_and_a_state_has_one_model(launcher: Launcher) -> None:
    found = found_by(launcher, "kinds", "two_models", "closed")
    assert [set(checks) for checks in found["kinds"].values()] == [{True}] * 3
    assert len(found["kinds"][0]) == 54
    for error in found["two_models"].values():
        assert error.endswith("a state belongs to one model; make a CompressionState for each")
    by_method = list(zip(*found["closed"].values(), strict=True))
    assert [len(set(digests)) for digests in by_method] == [1, 1]


@pytest.mark.slow
def test_no_spike_and_no_gradient_of_zero_is_a_step_lost(launcher: Launcher) -> None:
    by_rank = found_by(launcher, "spike")["spike"]
    assert by_rank[0] == by_rank[1] == by_rank[2]
    worst = {(name, feedback): error for name, feedback, error, _ in by_rank[0]}
    assert len(worst) == 12
    for (name, feedback), error in worst.items():
        # With feedback a mean has the rounding errors of two steps.
        assert 0 < error < (0.005 if name in ("fp16", "bf16") else 0.1) * (1 + feedback), name


@pytest.mark.slow
def test_ranks_with_other_options_are_an_error_on_all_ranks_that_names_both_in_words(launcher: Launcher) -> None:
    by_rank = found_by(launcher, "differing")["differing"]
    assert by_rank[0] == by_rank[1] == by_rank[2]
    other = "ranks have different options: rank {} has {}, rank 0 has {}; give all ranks the same"
    assert by_rank[0] == [
        other.format(2, "scale 64.0", "scale auto"),
        other.format(2, "scale None and error_feedback True", "scale auto and error_feedback False"),
        other.format(2, "seed 1", "seed 0"),
        other.format(2, "compressor terngrad", "compressor None"),
        "ranks round differently: rank 0 packed with bound 10, rank 2 bounded with bound 10",
        "ranks round differently: rank 0 packed with bound 10, rank 2 packed with bound 8",
        other.format(2, "exact_below 5 and exact_vectors True", "exact_below 0 and exact_vectors False"),
        other.format(2, "start_step 10", "start_step 1"),
        other.format(
            2, "exact_steps_so_far 1 and resumed_after_step 2", "exact_steps_so_far 0 and resumed_after_step None"
        ),
        other.format(1, "resumed_after_step 4", "resumed_after_step None"),
        other.format(1, "method psgd", "method rsgd"),
        other.format(2, "scale 64.0", "scale auto"),
        other.format(
            1,
            "compression options and scale auto and min_octets 65536",
            "compression none and scale None and min_octets None",
        ),
    ]


@pytest.mark.slow
def test_a_wrapped_optimizer_is_saved_copied_hooked_and_scaled_like_a_plain_one(launcher: Launcher) -> None:
    found = found_by(launcher, "wrapped", "scaler", "accumulated", "failed", "reconnected")
    assert list(found["reconnected"].values()) == [[True] * 5] * 3
    assert list(found["wrapped"].values()) == [[True] * 6] * 3
    assert list(found["accumulated"].values()) == [[True] * 2] * 3
    for said in found["failed"].values():
        begun, error = ([2.0, 2.0], "out of memory"), said.pop(6)
        assert said == [*begun, [6.0, 6.0], [8.0, 8.0], *begun, [8.0, 8.0]]
        assert error.startswith("the last backward() raised after some of its gradients had left")
    assert found["scaler"].keys() == {0, 1, 2}
    for ranks in zip(*found["scaler"].values(), strict=True):  # unscaled by the scaler, by a fused optimizer
        digests, scales, is_near = zip(*ranks, strict=True)
        assert len(set(digests)) == 1  # the infinity of rank 1 made all ranks skip the step
        assert scales == ([1024.0] * 3 + [512.0] * 3,) * 3
        assert is_near == (True,) * 3


def off() -> CompressionState:
    """A state for one rank, which needs no other."""
    return CompressionState(offload="off")


def sgd(model: torch.nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), 0.1)


def periodic(model: torch.nn.Module, **options: Any) -> Periodic:
    return Periodic(model, sgd(model), **{"every": 2, "state": off(), **options})


class Renamed(DistributedOptimizer):
    """A user's own."""


def test_a_copy_is_of_its_own_class() -> None:
    wrapper = Renamed(sgd(torch.nn.Linear(4, 2)), off(), backward_passes_per_step=2)
    for twin in (copy.deepcopy(wrapper), pickle.loads(pickle.dumps(wrapper))):
        assert type(twin) is Renamed
        assert twin._passes == 2


def test_what_a_door_cannot_do_is_refused_when_it_is_asked() -> None:
    layer, complex_layer = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2, dtype=torch.complex64)
    with pytest.raises(UsageError, match=r"values of torch.complex64 cannot be summed here"):
        periodic(complex_layer)
    with pytest.raises(UsageError, match=r"values of torch.complex64 cannot be summed here"):
        DistributedOptimizer(sgd(complex_layer), off())
    with pytest.raises(UsageError, match=r"LBFGS evaluates the loss .* needs no closure"):
        DistributedOptimizer(torch.optim.LBFGS(layer.parameters()), off())
    with pytest.raises(UsageError, match="before DistributedOptimizer wraps it"):
        DistributedOptimizer(sgd(layer), off()).add_param_group({"params": complex_layer.parameters()})
    for passes in (0, -1, 1.5):
        with pytest.raises(UsageError, match="give a whole number of 1 or more"):
            DistributedOptimizer(sgd(layer), off(), backward_passes_per_step=passes)  # type: ignore[arg-type]
    for every in (0, 1.5, "4", True):
        with pytest.raises(UsageError, match=f"every={every!r} is not a number of steps"):
            periodic(layer, every=every)
    with pytest.raises(UsageError, match="the state has no method, steps, synchronised"):
        periodic(layer).load_state_dict({})
    with pytest.raises(UsageError, match="no parameter of the model learns"):
        periodic(layer.requires_grad_(False))
    for wrong in ({"learning_rate": float("nan")}, {"learning_rate": 0.0}, {"momentum": 1.0}):
        with pytest.raises(UsageError, match="give a rate above 0, and a momentum from 0 to below 1"):
            Outer(**wrong)


def test_the_state_of_another_periodic_method_is_refused() -> None:
    layer = torch.nn.Linear(4, 2)
    saved = periodic(layer).state_dict()
    periodic(layer).load_state_dict(saved)
    others: list[tuple[dict[str, Any], str]] = [
        ({"method": "changes"}, "changes"),
        ({"outer": Outer()}, "psgd with an outer optimizer"),
    ]
    for options, name in others:
        with pytest.raises(UsageError, match=f"saved with psgd, this run has {name}: give it the same method"):
            periodic(layer, **options).load_state_dict(saved)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"compressor": "wa"}, "wa moves weights, not gradients: use netoffload.torch.Periodic"),
        ({"compressor": "psgd:p=4"}, "psgd moves weights"),
        ({"compressor": "pqasgd"}, "pqasgd moves weights"),
        ({"compressor": "terngrad:via=server"}, "needs a server"),
        ({"compressor": "qsgd", "bound": 8}, "not both"),
        ({"compressor": "bf16", "error_feedback": True}, "keeps no residual.* write bf16:via=gather"),
        ({"compressor": "8bit-dynamic:via=ring", "error_feedback": True}, "write 8bit-dynamic:via=gather"),
        ({"compressor": "wgt:via=ring"}, "wgt keeps what it does not send, .* write via=gather"),
        ({"compressor": "chunked-topk:k=8,via=ring"}, "chunked-topk keeps what it does not send"),
        ({"codec": "zip"}, "zip"),
        ({"offload": "off", "require": True}, "asks for compression, and offload is off"),
        ({"offload": "gpu"}, "gpu"),
        ({"scale": 100.0}, "not a power of two"),
        ({"min_octets": 10}, "min_octets is an option of the backend"),
        ({"start_step": -1}, "start_step is -1: give a whole number from 0 on"),
        ({"start_step": "5"}, "start_step is '5'"),
        ({"start_step": 1.5}, "start_step is 1.5"),
        ({"batch": 0}, "batch is 0: give a whole number from 1 on"),
        ({"exact_below": "4k"}, "exact_below is '4k'"),
        ({"seed": True}, "seed is True"),
        ({"error_feedback": "no"}, "error_feedback is 'no': give True or False"),
        ({"seed": 2**64}, "seed 18446744073709551616 is too large"),
        ({"compressor": 3}, "compressor is 3: give its name"),
        ({"codec": ""}, "codec '' is unknown"),
        ({"exact_names": [3]}, "exact_names is .*write a list of patterns"),
        ({"start_step": 0}, "named_parameters"),
        ({"exact_names": "norm"}, "write"),
        ({"exact_last": True}, "named_parameters"),
    ],
)
def test_options_that_cannot_be_are_refused_before_a_rank_waits(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        CompressionState(**options)


def test_what_the_environment_requires_is_not_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETOFFLOAD_REQUIRE", "1")
    assert CompressionState(seed=np.int64(3), compressor="qsgd").options.compared()["seed"] == 3
    with pytest.raises(UsageError, match=r"\$NETOFFLOAD_REQUIRE asks for compression, and offload is off"):
        CompressionState(offload="off")
    monkeypatch.setenv("NETOFFLOAD_OFFLOAD", "off")
    with pytest.raises(UsageError, match="and offload is off"):
        CompressionState()


def test_a_server_is_replaced_by_a_gather_where_there_is_none() -> None:
    assert Options(compressor="terngrad").spec().name == "terngrad:via=gather"
    assert Options(compressor="terngrad:packing=bits").spec().name == "terngrad:packing=bits,via=gather"


@pytest.mark.parametrize(
    "said",
    [
        {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"},
        {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
        {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "PMI_RANK": "0", "PMI_SIZE": "1"},
    ],
)
def test_ranks_of_every_launcher_get_the_environment_of_torch(said: dict[str, str]) -> None:
    environment = {**said, "MASTER_ADDR": "10.0.0.1"}
    set_rank_environment(environment)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    assert [environment[name] for name in names] == ["2", "4", "0", "10.0.0.1", "29500"]


def test_gloos_interface_is_the_users_and_on_one_host_nobodys() -> None:
    alone, chosen = {"RANK": "0"}, {"RANK": "0", "MASTER_ADDR": "10.0.0.1", "GLOO_SOCKET_IFNAME": "mine0"}
    for environment in (alone, chosen):
        set_rank_environment(environment)
    assert "GLOO_SOCKET_IFNAME" not in alone
    assert chosen["GLOO_SOCKET_IFNAME"] == "mine0"


@pytest.mark.slow
def test_the_examples_run_under_torchrun_without_rights(launcher: Launcher) -> None:
    lines = [
        f"{EXAMPLES}/ddp.py --steps 50 --offload inline",
        f"{EXAMPLES}/optimizer.py --steps 50 --compressor 8bit-dynamic",
        f"{EXAMPLES}/periodic.py --steps 50 --method pqasgd --outer",
        f"{EXAMPLES}/backend.py --steps 3",
    ]
    done = launcher.torchrun(["--standalone"], "programs.all_examples", *lines)
    assert done.returncode == 0, done.stderr[-4000:]
    ratios = [float(found) for found in re.findall(r"accuracy .* ratio ([\d.]+)$", done.stdout, re.MULTILINE)]
    assert len(ratios) == len(lines) - 1
    assert min(ratios) > 2
    assert "replicas are equal" in done.stdout


@pytest.mark.slow
def test_diloco_ends_with_one_model(launcher: Launcher) -> None:
    line = f"{EXAMPLES}/diloco.py --steps 12 --every 5"
    done = launcher.torchrun(["--standalone"], "programs.all_examples", line)
    assert done.returncode == 0, done.stderr[-4000:]
    digests = re.findall(r"validation loss [\d.]+, parameters ([0-9a-f]{16})", done.stdout)
    assert len(digests) == 2
    assert len(set(digests)) == 1


@pytest.mark.parametrize("name", ["param_groups", "state", "defaults"])
def test_what_the_wrapped_optimizer_holds_cannot_be_set_beside_it(name: str) -> None:
    inner = sgd(torch.nn.Linear(3, 1))
    wrapped = DistributedOptimizer(inner, off())
    assert getattr(wrapped, name) is getattr(inner, name)
    with pytest.raises(AttributeError):
        setattr(wrapped, name, {})


def rendezvous_of(kind: str) -> list[str]:
    if kind == "c10d":
        return ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}", "--rdzv-id", "job"]
    if kind == "static":
        return ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    return ["--standalone"]


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("door", "fault", "rendezvous"),
    [
        ("hook", "kill", "standalone"),
        ("optimizer", "exception", "c10d"),
        ("netoffload", "kill", "static"),
        ("periodic", "stop", "standalone"),
    ],
)
def test_the_next_attempt_finishes_through_every_door(
    launcher: Launcher, door: str, fault: str, rendezvous: str, tmp_path: Path
) -> None:
    options = [*rendezvous_of(rendezvous), "--max-restarts", "2", "--monitor-interval", "0.2"]
    done = launcher.torchrun(options, "programs.restarted_ranks", door, fault, tmp_path, timeout_s=180)
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert found[0] == found[1]
    assert found[0]["attempt"] == 1  # the first one after the fault


def test_buckets_of_earlier_steps_are_kept_where_they_fill_one() -> None:
    state = off()
    assert state._pieces((1, 0)) == [(1, 0)]
    assert state._pieces((0, 1)) == [(1, 0)]
    assert state._pieces((2, 0, 1)) == [(2, 0, 1)]
    assert state._pieces((0, 1)) == [(0, 1)]


def _wrapped(model: torch.nn.Module, **options: Any) -> DistributedOptimizer:
    state = CompressionState(**{"offload": "off", "named_parameters": model.named_parameters(), **options})
    return DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.01), state)


def _step(optimizer: Any, model: torch.nn.Module, value: float = 1.0) -> None:
    optimizer.zero_grad()
    model(value * torch.arange(1.0, 9.0).reshape(2, 4)).sum().backward()
    optimizer.step()


def test_a_layer_that_is_frozen_later_stays_as_it_is() -> None:
    first, last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)
    model = torch.nn.Sequential(first, last)
    optimizer = _wrapped(model)
    _step(optimizer, model)
    first.requires_grad_(False)
    frozen, learning = first.weight.detach().clone(), last.weight.detach().clone()
    for _ in range(3):
        _step(optimizer, model)
    assert first.weight.grad is None
    assert torch.equal(first.weight, frozen)
    assert not torch.equal(last.weight, learning)


def test_a_new_wrapper_takes_the_place_of_the_earlier_one() -> None:
    model = torch.nn.Linear(4, 3)
    earlier, optimizer = _wrapped(model), _wrapped(model)
    for _ in range(3):
        _step(optimizer, model)
    assert (earlier.compression.report().steps, optimizer.compression.report().steps) == (0, 3)


def test_training_goes_on_after_a_gradient_that_could_not_travel() -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = _wrapped(model, offload=None, compressor="qsgd:levels=15", start_step=0)
    _step(optimizer, model)
    before = model.weight.detach().clone()
    for _ in range(2):
        with pytest.raises(UsageError, match="inf"):
            _step(optimizer, model, float("inf"))
        _step(optimizer, model)
    assert model.weight.isfinite().all()
    assert not torch.equal(model.weight, before)
    optimizer.compression.close()
    _step(optimizer, model)


def test_a_state_from_before_the_first_step_begins_anew() -> None:
    found = []
    for goes_back in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimizer = _wrapped(model, offload=None, compressor="qsgd:levels=1", error_feedback=True, start_step=0)
        weights, state = copy.deepcopy(model.state_dict()), optimizer.compression.state_dict()
        if goes_back:
            _step(optimizer, model, 0.3)
            model.load_state_dict(weights)
            optimizer.load_state_dict(torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=0.01).state_dict())
            optimizer.compression.load_state_dict(state)
        for _ in range(3):
            _step(optimizer, model, 0.3)
        found.append(model.weight.detach().clone())
    assert torch.equal(*found)


def test_the_state_of_another_model_is_refused_and_changes_nothing() -> None:
    small, large = torch.nn.Linear(4, 3), torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    options: dict[str, Any] = {"offload": None, "compressor": "qsgd:levels=15"}
    wrapped, other = _wrapped(small, **options), _wrapped(large, **options)
    for _ in range(2):
        _step(other, large)
    with pytest.raises(UsageError, match="the model that was saved has 4 parameters, this one has 2"):
        wrapped.compression.load_state_dict(other.compression.state_dict())
    wide = torch.nn.Linear(4, 5)
    refused = _wrapped(wide, **options)
    with pytest.raises(UsageError, match="weight has 20 values"):
        refused.compression.load_state_dict(other.compression.state_dict())
    for _ in range(2):
        _step(wrapped, small)
        _step(refused, wide)
    with pytest.raises(UsageError, match="the state has no cut, exact, memory, method"):
        wrapped.compression.load_state_dict({"format": 1, "rank": 0, "size": 1, "sizes": [12, 3], "step": 2})
    with pytest.raises(UsageError, match="the state has no inner"):
        wrapped.compression.load_state_dict(wrapped.compression.state_dict() | {"memory": {}})


@pytest.mark.parametrize("method", ["psgd", "changes"])
def test_periodic_averages_begin_with_the_first_step_and_go_on_after_a_close(method: str) -> None:
    found = []
    for is_late in (False, True):
        torch.manual_seed(0)
        weights = torch.nn.Linear(4, 3).state_dict()
        torch.manual_seed(1)
        model = torch.nn.Linear(4, 3)
        if not is_late:
            model.load_state_dict(weights)
        averaged = periodic(model, method=method, outer=Outer())
        model.load_state_dict(weights)
        for step in range(6):
            averaged.optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            averaged.step()
            if is_late and step == 3:
                averaged.state.close()
        found.append(model.weight.detach().clone())
    assert torch.equal(*found)


def test_a_layer_without_values_has_a_state_that_torch_loads(tmp_path: Path) -> None:
    parameters = [torch.nn.Parameter(torch.ones(size)) for size in (8, 0)]
    model = torch.nn.ParameterList(parameters)
    state = CompressionState(
        codec="packed", offload="inline", error_feedback=True, start_step=0, named_parameters=model.named_parameters()
    )
    optimizer = DistributedOptimizer(torch.optim.SGD(parameters, 0.1), state, bucket_octets=4)
    for _ in range(3):
        optimizer.zero_grad()
        parameters[0].square().sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    torch.save(state.state_dict(), tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt")
    assert loaded == state.state_dict()
    assert (loaded["sizes"], loaded["step"]) == ([8, 0], 3)
    state.load_state_dict(loaded)


def test_an_optimizer_state_with_a_number_of_numpy_is_loaded() -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=np.linspace(0.1, 0.2, 3)[1])
    loaded = torch.load(io.BytesIO(_saved(optimizer)), weights_only=True)
    assert loaded["param_groups"][0]["lr"] == pytest.approx(0.15)
