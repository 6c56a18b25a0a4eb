"""How many operands take turns and how many launches a graph holds; what is timed needs a GPU (tests/gates)."""

from __future__ import annotations

import pytest

from kernsearch.backends.cuda.timing import FOOTPRINT, MOST_COPIES, MOST_LAUNCHES, REPLAY_S, copies_for, plan_replay

L2 = 60 << 20


@pytest.mark.parametrize("nbytes", [1, 24_576, 1 << 20, 33_000_000, L2, 400 << 20])
def test_operands_that_take_turns_do_not_fit_the_cache(nbytes: int) -> None:
    copies = copies_for(nbytes, L2)
    assert 1 <= copies <= MOST_COPIES
    assert copies * nbytes >= FOOTPRINT * L2 or copies == MOST_COPIES
    assert copies == 1 or (copies - 1) * nbytes < FOOTPRINT * L2


@pytest.mark.parametrize("seconds", [1e-7, 1e-6, 7e-6, 1e-4, 1e-3, 1.0])
@pytest.mark.parametrize("nbytes", [24_576, 9_000_000, 400 << 20])
def test_a_replay_is_long_enough_and_gives_every_copy_as_many_turns(seconds: float, nbytes: int) -> None:
    copies, launches = plan_replay(seconds, nbytes, L2)
    assert launches % copies == 0 and launches <= MOST_LAUNCHES
    assert launches * seconds >= REPLAY_S or launches + copies > MOST_LAUNCHES
    assert launches == copies or (launches - copies) * seconds < REPLAY_S
