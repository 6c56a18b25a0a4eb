"""Rungs 01 to 04 of gemm on CUDA and the float32 pipeline: on the host, threads in either order, and on a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cuda_plans import OnGpu, OnHost, dtype_of, nominal, plan_of
from gemm_bindings import gemm_binding, reference
from kernsearch.spaces.gemm.templates import simt

from kernsearch import backends
from kernsearch.feasible import FeasibleSpace

TEMPLATES = {template.name: template for template in simt.templates()}
SMALL = {"BM": 32, "BN": 64, "BK": 8, "TM": 4, "TN": 8, "GROUP": 4}
CONFIGS = {
    "naive": {"TM": 4},
    "shared_tile": {"BM": 8, "BN": 16, "BK": 16},
    "register_tile": {"BM": 32, "BN": 32, "BK": 8, "TM": 4, "TN": 2},
    "vectorized": SMALL,
    "vectorized_split_k": SMALL,
    "simt_pipeline": {**SMALL, "STAGES": 3},
    "simt_split_k": {**SMALL, "STAGES": 2},
}
WHOLE = ("naive", "shared_tile", "register_tile", "vectorized", "simt_pipeline")
AWKWARD = ((1, 1, 1), (33, 65, 9), (64, 128, 32), (100, 60, 7), (31, 129, 100))
EVERYTHING = "bias,gelu,residual"
CASES = [
    *((name, layout, "float32") for name in ("vectorized", "simt_pipeline") for layout in ("nn", "nt", "tn", "tt")),
    *((name, layout, "float32") for name in WHOLE[:3] for layout in ("nn", "tt")),
    *((name, layout, dtype) for name in WHOLE[:4] for layout, dtype in (("nt", "bfloat16"), ("tn", "float16"))),
]


@pytest.fixture(params=["host", "backwards", pytest.param("gpu", marks=pytest.mark.gpu)])
def place(request):
    if request.param == "gpu":
        return OnGpu(request.getfixturevalue("gpu"))
    return OnHost(nominal(), backwards=request.param == "backwards")


def bound(layout="nn", epilogue="none", dtype="float32", *, batch=False, split=False):
    """As derivation makes it: sums and slabs in float32."""
    made = replace(gemm_binding(layout, epilogue, dtype, batch=batch, split=split), acc="float32")
    arrays = tuple(replace(a, dtype="float32") if a.name == "P" else a for a in made.arrays)
    return replace(made, arrays=arrays)


def operands(shape, layout="nn", dtype="float32", *, batch=(), pad=0, skip=0):
    """A, B, bias and C by name; rows of A and B lie `pad` elements apart and begin `skip` after an aligned address,
    with NaN between them."""
    m, n, k = shape
    kind = dtype_of(dtype)

    def stored(seed, rows, columns, turned):
        rng = np.random.default_rng(seed)
        values = rng.standard_normal((*batch, rows, columns))
        values = np.swapaxes(values, -1, -2) if turned else values
        room = np.full((*values.shape[:-1], values.shape[-1] + pad + skip), np.nan, kind)
        room[..., skip : skip + values.shape[-1]] = values
        return room[..., skip : skip + values.shape[-1]]

    rng = np.random.default_rng(9)
    return {
        "A": stored(1, m, k, layout[0] == "t"),
        "B": stored(2, k, n, layout[1] == "t"),
        "bias": rng.standard_normal(n).astype(kind),
        "C": rng.standard_normal((*batch, m, n)).astype(kind),
    }


def upright(array, letter):
    return np.swapaxes(array, -1, -2) if letter == "t" else array


def check(
    place,
    name,
    arrays,
    layout="nn",
    epilogue="none",
    dtype="float32",
    *,
    config=None,
    binding=None,
    alpha=1.0,
    factor=1.0,
):
    """Run and compare with `factor` times the textbook in float64, within what rounding can do."""
    template, split = TEMPLATES[name], 3 if name.endswith("split_k") else 0
    a, b = (upright(arrays[role], letter) for role, letter in zip("AB", layout, strict=True))
    *batch, m, k = a.shape
    n, out = b.shape[-1], "P" if split else "D"
    binding = binding or bound(layout, epilogue, dtype, batch=bool(batch), split=bool(split))
    config = {**(config or CONFIGS[name]), **({"SPLIT": split} if split else {})}
    scalars = {"alpha": alpha, "beta": 2.0}
    given = {array.name: arrays[array.name] for array in binding.arrays if array.name in arrays and array.name != out}
    if out not in arrays:
        shape = (*((split,) if split else ()), *batch, m, n)
        arrays = {**arrays, out: np.full(shape, np.nan, dtype_of("float32" if split else dtype))}
    given[out] = arrays[out]
    used = {letter: value for letter, value in scalars.items() if letter in binding.scalars}
    place.run(plan_of(binding, template, config, place.device), binding, given, used)
    got = given[out].astype(np.float64)
    got = got.sum(0) if split else got
    wide = {"A": a.astype(np.float64), "B": b.astype(np.float64)}
    wide |= {x: arrays[x].astype(np.float64) for x in ("bias", "C")}
    want = reference(wide, epilogue, {"alpha": factor * (1.0 if split else alpha), "beta": 2.0})
    size = np.abs(factor * alpha) * (np.abs(wide["A"]) @ np.abs(wide["B"])) + 8 * np.abs(want) + 8
    allowed = 4 * np.finfo(np.float32).eps * np.sqrt(k + 1) * size
    if dtype != "float32" and not split:
        allowed = allowed + np.abs(want) * {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype] + 2.0**-20
    np.testing.assert_array_less(np.abs(got - want), allowed)
    return given[out]


@pytest.mark.parametrize(("name", "layout", "dtype"), CASES)
def test_a_rung_computes_the_textbook_at_awkward_sizes(place, name, layout, dtype):
    for shape in AWKWARD:
        for pad in (0, 1, 4):
            check(place, name, operands(shape, layout, dtype, pad=pad), layout, dtype=dtype)


@pytest.mark.parametrize("name", WHOLE)
def test_a_rung_finishes_batches_as_the_hole_says(place, name):
    for shape in ((5, 37, 70), (33, 65, 16)):
        check(place, name, operands(shape, batch=(3,)), epilogue=EVERYTHING, alpha=0.5)


@pytest.mark.parametrize("name", ["vectorized_split_k", "simt_split_k"])
def test_slabs_add_up_whatever_their_length(place, name):
    for k in (1, 64, 65, 130, 200, 999):
        check(place, name, operands((33, 68, k)))


@pytest.mark.parametrize("name", WHOLE)
def test_strides_are_the_callers(place, name):
    arrays = operands((26, 74, 41))
    views = {
        "negative": {"A": arrays["A"][::-1, ::-1], "B": arrays["B"][::-1, ::-1]},
        "spaced": {"A": arrays["A"][::2, ::3], "B": arrays["B"][::3, ::2], "C": arrays["C"][::2, ::2],
                   "bias": arrays["bias"][::2]},
        "broadcast": {"A": np.broadcast_to(arrays["A"][:1], (26, 41)),
                      "B": np.broadcast_to(arrays["B"][:, :1], (41, 74))},
    }  # fmt: skip
    for view in views.values():
        check(place, name, {**arrays, **view})
    room = np.full((60, 160), np.inf, "float32")
    own = room[3:55:2, 5:153:2]
    check(place, name, {**arrays, "D": own})
    own[...] = np.inf
    assert np.isinf(room).all()


def test_the_pipeline_takes_rows_that_begin_anywhere(place):
    for layout in ("nn", "tn"):
        for skip, pad in ((0, 0), (1, 0), (2, 2), (4, 4)):
            check(place, "simt_pipeline", operands((36, 68, 24), layout, pad=pad, skip=skip), layout)


@pytest.mark.parametrize("name", WHOLE)
def test_no_depth_gives_the_epilogue_of_zero(place, name):
    check(place, name, operands((5, 37, 0)), epilogue=EVERYTHING, alpha=0.5)


@pytest.mark.parametrize("name", WHOLE)
def test_an_operand_may_be_an_expression(place, name):
    plain = bound()
    doubled = {role: ("mul", ("const", 2.0), load) for role, load in plain.operands.items()}
    check(place, name, operands((33, 65, 19)), binding=replace(plain, operands=doubled), factor=4.0)


def test_nan_and_infinity_arrive_where_they_belong(place):
    for name in WHOLE:
        arrays = operands((13, 37, 41))
        arrays["A"][3, 5], arrays["A"][4, 6], arrays["B"][7, 8] = np.nan, np.inf, -np.inf
        arrays["D"] = np.zeros((13, 37), "float32")
        binding = bound()
        place.run(plan_of(binding, TEMPLATES[name], CONFIGS[name], place.device), binding,
                  {x: arrays[x] for x in "ABD"}, {"alpha": 1.0})  # fmt: skip
        with np.errstate(invalid="ignore"):
            want = arrays["A"].astype(float) @ arrays["B"].astype(float)
        np.testing.assert_array_equal(np.isnan(arrays["D"]), np.isnan(want))
        np.testing.assert_array_equal(np.isinf(arrays["D"]), np.isinf(want))


SHAPES_OF_TILES = {
    "one row": ({"BM": 1, "BN": 128, "BK": 16, "TM": 1, "TN": 4, "STAGES": 4}, (1, 130, 100)),
    "one column": ({"BM": 128, "BN": 1, "BK": 32, "TM": 4, "TN": 1, "STAGES": 2}, (130, 1, 100)),
    "few rows": ({"BM": 16, "BN": 128, "BK": 32, "TM": 8, "TN": 4, "STAGES": 3}, (16, 132, 70)),
    "twelve by nine": ({"BM": 192, "BN": 144, "BK": 16, "TM": 12, "TN": 9, "STAGES": 2}, (200, 145, 33)),
    "nine by twelve": ({"BM": 144, "BN": 96, "BK": 8, "TM": 9, "TN": 12, "STAGES": 3}, (145, 97, 20)),
    "eight by fourteen": ({"BM": 128, "BN": 112, "BK": 16, "TM": 8, "TN": 14, "STAGES": 3}, (129, 116, 20)),
    "eight by sixteen": ({"BM": 128, "BN": 128, "BK": 16, "TM": 8, "TN": 16, "STAGES": 3}, (260, 256, 50)),
    "sixteen by eight": ({"BM": 256, "BN": 128, "BK": 8, "TM": 16, "TN": 8, "STAGES": 4}, (256, 129, 50)),
}


@pytest.mark.parametrize("tiles", SHAPES_OF_TILES)
def test_the_pipeline_deals_out_tiles_of_any_shape(place, tiles):
    config, shape = SHAPES_OF_TILES[tiles]
    check(place, "simt_pipeline", operands(shape), config={**config, "GROUP": 8})


@pytest.mark.parametrize("tiles", SHAPES_OF_TILES)
def test_tiles_that_are_tested_are_in_the_space(tiles):
    config, (m, n, k) = SHAPES_OF_TILES[tiles]
    template = TEMPLATES["simt_pipeline"]
    space = FeasibleSpace(
        (*template.params, *template.knobs), template.constraints, nominal(), {"M": m, "N": n, "K": k, "ITEMSIZE": 4}
    )
    assert space.contains({**config, "GROUP": 8}) is None


SHAPES = {"large": (4096, 4096, 4096), "flat": (16, 4096, 4096), "row": (1, 4096, 4096), "column": (4096, 1, 4096)}


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_pipeline_has_configs_enough_and_not_too_many(shape, arch):
    sizes = dict(zip("MNK", SHAPES[shape], strict=True)) | {"ITEMSIZE": 4}
    space = FeasibleSpace(simt.PIPELINE.params, simt.PIPELINE.constraints, nominal(arch), sizes)
    assert 5 <= (space.count() or 0) <= 500


@pytest.mark.parametrize(
    ("name", "layout", "dtype", "arch"),
    [
        ("naive", "nn", "bfloat16", "sm_80"),
        ("shared_tile", "tn", "float16", "sm_89"),
        ("register_tile", "nt", "bfloat16", "sm_90a"),
        ("vectorized", "tt", "bfloat16", "sm_80"),
        ("vectorized_split_k", "nn", "float32", "sm_89"),
        ("simt_pipeline", "nt", "float32", "sm_80"),
        ("simt_split_k", "tn", "float32", "sm_89"),
    ],
)
def test_a_rung_compiles_without_spills(name, layout, dtype, arch):
    pytest.importorskip("cuda.bindings")
    device = nominal(arch)
    binding = bound(layout, EVERYTHING if "split" not in name else "none", dtype, split="split" in name)
    plan = plan_of(binding, TEMPLATES[name], {**CONFIGS[name], "SPLIT": 4}, device)
    compiled = backends.get("cuda").compile(plan.kernels[0], device, timeout_s=120)
    assert compiled.evidence["spill_stores"] == 0


def test_the_large_tile_of_the_pipeline_keeps_to_its_registers():
    pytest.importorskip("cuda.bindings")
    config = {"BM": 128, "BN": 128, "BK": 16, "TM": 8, "TN": 16, "STAGES": 3, "GROUP": 8}
    plan = plan_of(bound(), TEMPLATES["simt_pipeline"], config, nominal("sm_90a"))
    compiled = backends.get("cuda").compile(plan.kernels[0], nominal("sm_90a"), timeout_s=120)
    assert compiled.evidence["spill_stores"] == 0
    assert simt.resident(config) == 2 and compiled.evidence["registers"] * simt.threads(config) * 2 <= 65536
