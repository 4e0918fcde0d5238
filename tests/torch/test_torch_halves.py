"""bfloat16 and float16 through every door: the bits of the float32 sum, rounded once, from half of float32's octets."""

import pytest

from tests.shared.quick_cases import by_day
from tests.torch.launcher import Launcher


@pytest.mark.slow
@pytest.mark.parametrize("size", by_day([2, 3, 4], [3]))
def test_halves_are_summed_in_float32_rounded_once_and_travel_as_they_are(launcher: Launcher, size: int) -> None:
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
