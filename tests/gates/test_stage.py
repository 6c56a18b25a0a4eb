"""Copies of inputs are exact, small or large; the space gate says which rule a config breaks."""

from __future__ import annotations

import numpy as np
import pytest

from kernsearch.device import Device
from kernsearch.errors import Rejected
from kernsearch.gates import space
from kernsearch.gates.stage import Kept
from kernsearch.space import Constraint, Param


@pytest.mark.parametrize("shape", [(5,), (3, 4), (700, 1031)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_kept_copy_notices_any_bit_and_restores_it(shape: tuple[int, ...], dtype: str) -> None:
    array = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    array.reshape(-1)[0] = np.nan
    kept, before = Kept(array), array.tobytes()
    assert kept.first_change(array) is None
    at = tuple(n - 1 for n in shape)
    array.view(f"u{array.itemsize}")[at] ^= 1
    assert kept.first_change(array) == at
    assert kept.element(at) != array[at]
    kept.restore(array)
    assert array.tobytes() == before


def test_a_kept_copy_compares_with_pitched_arrays() -> None:
    array = np.arange(12.0).reshape(3, 4)
    wide = np.full((3, 7), np.nan)
    Kept(array).restore(wide[:, :4])
    assert Kept(array).first_change(wide[:, :4]) is None
    assert np.isnan(wide[:, 4:]).all()


PARAMS = (Param("MR", (4, 8), "rows"), Param("NR", (16, 32), "columns"))
RULES = (Constraint("tile exceeds the registers", lambda c, d, s: c["MR"] * c["NR"] <= 128),)
DEVICE = Device("cpu", 0, "test", "x86_64", "test")


@pytest.mark.parametrize(
    "config, reason",
    [
        ({"MR": 8, "NR": 32}, "tile exceeds the registers"),
        ({"MR": 5, "NR": 16}, "MR=5 is not one of 4, 8"),
        ({"MR": 4}, "NR has no value"),
        ({"MR": 4, "NR": 16, "KC": 1}, "KC is not a parameter of this variant"),
    ],
)
def test_the_space_gate_names_the_rule_that_a_config_breaks(config: dict[str, int], reason: str) -> None:
    with pytest.raises(Rejected) as caught:
        space(PARAMS, RULES, config, DEVICE, {})
    assert (caught.value.gate, caught.value.reason) == ("space", reason)
    space(PARAMS, RULES, {"MR": 4, "NR": 32}, DEVICE, {})
