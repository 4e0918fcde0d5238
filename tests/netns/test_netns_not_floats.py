"""0x28 is AF11, a class that others use for backups: data that is not float32 arrives as it was sent."""

import itertools

import numpy as np
import pytest

from netoffload.codec import get
from netoffload.lab.testbed import Testbed
from tests.engine import judgement_corpus as corpus
from tests.netns.programs.both_ways import carried_to

PORTS = itertools.count(7600)
COUNT = 125_000
OTHERS = ("en utf-8", "python", "WAV 16 bit, 1 channels, 0.001")
FLOATS = ("N(0, 1e-07)", "ReLU-sparse", "images in 0..1")
"""``tests/engine/test_engine_judgement.py`` has all of the corpus."""


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_array_of_floats_arrives_unchanged(nic_bed: Testbed, name: str) -> None:
    octets = corpus.others()[name]
    sent = (octets * (4 * COUNT // len(octets) + 1))[: 4 * COUNT]
    assert carried_to(nic_bed, next(PORTS), sent)[0] == sent


@pytest.mark.parametrize("name", [*FLOATS, "zeros"])
def test_arrays_of_floats_are_compressed(nic_bed: Testbed, name: str) -> None:
    array = np.zeros(1) if name == "zeros" else corpus.floats()[name]
    values = np.resize(np.asarray(array, np.float32), COUNT)
    got, compressed = carried_to(nic_bed, next(PORTS), values.tobytes())
    bits, exact = np.frombuffer(got, np.uint32), values.view(np.uint32)
    rounded = get("inceptionn").round_trip(values, 10).view(np.uint32)
    assert ((bits == rounded) | (bits == exact)).all()
    # A flow may be exact until it is judged by its first kilobyte, which may be in a segment of 64 KiB.
    assert (bits != rounded)[65536 // 4 :].sum() == 0
    assert compressed > 0.85 * values.nbytes
