"""``netoffload bench`` refuses impossible options before it builds anything, in one clear line."""

import pytest

from netoffload.lab.bench.settings import EXPERIMENTS
from tests.shared.commands import netoffload, refusal

REFUSED = [
    ("allreduce --what ring --what nccl", "contender 'nccl' is unknown"),
    ("allreduce --nodes 1", "1 nodes exchange nothing"),
    ("allreduce --size 3", "less than one float32"),
    ("allreduce --rate fast", "rate 'fast'"),
    ("allreduce --gradients uniform:1", "gradients 'uniform:1'"),
    ("allreduce --bound 17", "bound 17 is outside"),
    ("codec --size 4096 --codec zip", "codec 'zip' is unknown"),
    ("codec --size 4096 --kernel gpu", "'gpu' is unknown"),
    ("codec --size 3", "less than one float32"),
    ("codec --size 4096 --data noise", "'noise' are unknown"),
    ("codec --size 4096 --gradients /nonexistent.npy", "cannot read gradients"),
    ("compressors --compressor zip", "compressor 'zip' is unknown"),
    ("compressors --compressor qsgd:norm=l3", "norm 'l3' is unknown"),
    ("compressors --size 8KB --layers 1,2", "the layers have 3 floats together, the vector 2000"),
    ("compressors --size 8KB --layers many", "layers 'many' are no lengths"),
    ("compressors --size 3B", "size"),
    ("compressors --data uniform", "gradients 'uniform' are unknown"),
    ("ddp --what nccl", "contender 'nccl' is unknown"),
    ("ddp --nodes 1", "1 nodes exchange nothing"),
    ("ddp --steps 5 --repeat 3", "5 steps are too few"),
    ("ddp --bound 17", "outside 1..16"),
    ("ddp --model resnet", "model 'resnet' is unknown"),
    ("ddp --data mnist", "mnist needs --data-dir"),
    ("nic --peers wireguard", "peer"),
    ("nic --rates fast", "not a number with a unit"),
    ("nic --size 3", "one float32"),
    ("nic --bound 17", "outside 1..16"),
    ("nic --gradients gaussian:2", "standard deviation"),
    ("nic --gradients no-such-file.npy", "no-such-file.npy"),
    ("overlap --compute java", "compute 'java' is unknown"),
    ("overlap --rate fast", "rate 'fast'"),
    ("overlap --size 3", "one float32"),
    ("overlap --compute-ms 0", "is no time"),
    ("overlap --compute-ms nan", "is no time"),
    ("overlap --compute-ms inf", "is no time"),
    ("overlap --nic --bound 17", "outside 1..16"),
    ("overlap --gradients gaussian:2", "standard deviation"),
]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_help_has_an_example(name: str) -> None:
    said = netoffload("bench", name, "--help").stdout
    assert f"Example: netoffload bench {name}" in said


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[words for words, _ in REFUSED])
def test_what_cannot_be_measured_is_refused(words: str, message: str) -> None:
    assert message in refusal("bench", *words.split())
