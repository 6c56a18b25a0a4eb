import mmap
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from gemm_bindings import (
    ACTIVATIONS,
    backwards,
    before_a_guard,
    build,
    check,
    combine_binding,
    device,
    gemm_binding,
    numbers,
    problem,
    reference,
    run,
)
from kernsearch.spaces.gemm.templates import cpu as gemm
from kernsearch.spaces.generic.templates import cpu as generic

from kernsearch import backends
from kernsearch.backends.cpu import emit, pool
from kernsearch.binding import Array

LANES = device().vector_bytes // 4
BLOCKS = {"MC": 16, "NC": 4 * LANES, "KC": 32, "MR": 4, "NR": 2 * LANES, "KU": 1}
WHOLE = {
    "contraction": (generic.CONTRACTION, {"ROWS": 2}),
    "cache_tiled": (gemm.CACHE_TILED, {**BLOCKS, "KC": 16}),
    "register_tiled": (gemm.REGISTER_TILED, BLOCKS),
    "register_tiled of few columns": (gemm.REGISTER_TILED, {**BLOCKS, "MR": 6, "NR": LANES, "KU": 2}),
    "own_blocks": (gemm.OWN_BLOCKS, BLOCKS),
    "own_blocks of many panels": (gemm.OWN_BLOCKS, {**BLOCKS, "NC": 512, "KC": 64}),
    "packed_a": (gemm.PACKED_A, BLOCKS),
    "packed_b": (gemm.PACKED_B, BLOCKS),
    "unpacked": (gemm.UNPACKED, BLOCKS),
    "unpacked of one row": (gemm.UNPACKED, {**BLOCKS, "MR": 1, "NR": 4 * LANES, "KC": 64, "KU": 2}),
    "few_rows": (gemm.FEW_ROWS, {"MC": 8, "NC": 4 * LANES, "KC": 16, "MR": 2, "KR": 4}),
    "dots": (gemm.DOTS, {"MC": 8, "MR": 4, "NR": 2, "KR": LANES}),
    "split_k of one slab": (gemm.SPLIT_K, {**BLOCKS, "SPLIT": 1}),
}
EVERYTHING = "bias,gelu,residual"
SCALARS = {"alpha": 0.5, "beta": 2.0}
AWKWARD = [(1, 1, 1), (3, 13, 129), (13, 127, 1), (127, 129, 13), (129, 3, 127), (1, 129, 127)]


@pytest.fixture(params=sorted(WHOLE))
def kernel(request):
    """build(epilogue, dtype, batch): a kernel that computes all of D."""
    template, config = WHOLE[request.param]

    @cache
    def make(epilogue="none", dtype="float32", batch=False):
        own = dict(config)
        if dtype == "float64" and "NR" in own:
            own |= {"KR": LANES // 2} if "KR" in own else {"NR": LANES, "MR": 4}
        binding = gemm_binding("nn", epilogue, dtype, batch=batch)
        if "SPLIT" in own:  # of one slab
            binding = replace(binding, template="split_k")
        return build(binding, template, own)

    return make


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("epilogue", ["none", EVERYTHING])
def test_a_kernel_computes_the_textbook_at_awkward_sizes(kernel, epilogue, threads):
    for m, n, k in AWKWARD:
        parallel = backwards() if threads > 1 else None
        check(kernel(epilogue), problem(m, n, k), epilogue, SCALARS, threads=threads, parallel=parallel)


def test_float64_is_computed_in_float64(kernel):
    for m, n, k in AWKWARD[1:]:
        check(kernel(EVERYTHING, "float64"), problem(m, n, k, "float64"), EVERYTHING, SCALARS)


@pytest.mark.parametrize("epilogue", ["none", EVERYTHING])
def test_bfloat16_is_summed_in_float32_and_rounded_once(kernel, epilogue):
    for m, n, k in AWKWARD:
        check(kernel(epilogue, "bfloat16"), problem(m, n, k, "bfloat16"), epilogue, SCALARS)
    arrays = {name: before_a_guard(array) for name, array in problem(13, 37, 41, "bfloat16").items()}
    check(kernel(epilogue, "bfloat16"), arrays, epilogue, SCALARS, threads=3, parallel=backwards())


def test_rounding_to_bfloat16_is_to_nearest_even_and_keeps_what_is_not_finite(kernel):
    bits = np.arange(0, 1 << 16, 7, dtype=np.uint16)
    arrays = problem(len(bits), 3, 1, "bfloat16")
    arrays["A"] = bits.view(arrays["B"].dtype)[:, None]
    arrays["B"][...] = 1
    with np.errstate(all="ignore"):
        third = np.float32(1 / 3)
        want = (arrays["A"].astype("float32") * third).astype(arrays["D"].dtype).astype("float32")
        run(kernel("none", "bfloat16"), arrays, {"M": len(bits), "N": 3, "K": 1}, {"alpha": float(third)})
        got = arrays["D"].astype("float32")
    np.testing.assert_array_equal(got, np.repeat(want, 3, axis=1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("epilogue", ["none", EVERYTHING])
def test_operands_may_have_any_strides(kernel, epilogue, dtype):
    m, n, k = 13, 37, 41
    plain = problem(m, n, k, dtype)
    views = {
        "transposed": {"A": plain["A"].T.copy().T, "B": plain["B"].T.copy().T},
        "negative": {"A": plain["A"][::-1, ::-1], "B": plain["B"][::-1, ::-1], "bias": plain["bias"][::-1]},
        "broadcast": {"A": np.broadcast_to(plain["A"][:1], (m, k)), "B": np.broadcast_to(plain["B"][:, :1], (k, n)),
                      "C": np.broadcast_to(plain["C"][0, 0], (m, n)), "bias": np.broadcast_to(plain["bias"][:1], n)},
        "spaced": {"A": numbers((2 * m, 3 * k), dtype)[::2, ::3], "B": numbers((2 * k, 3 * n), dtype)[::2, ::3]},
    }  # fmt: skip
    for view in views.values():
        result = np.full((m, n), np.nan, plain["D"].dtype)
        check(kernel(epilogue, dtype), {**plain, **view, "D": result}, epilogue, SCALARS)


@pytest.mark.parametrize("epilogue", ["none", EVERYTHING])
def test_nothing_is_written_between_the_rows_and_columns_of_an_output(kernel, epilogue):
    arrays = problem(13, 37, 41)
    for down, across in ((1, 1), (2, 1), (1, 3)):
        whole = np.full((2 + 13 * down, 5 + 37 * across), np.inf, "float32")
        own = whole[1 : 1 + 13 * down : down, 2 : 2 + 37 * across : across]
        own[...] = np.nan
        check(kernel(epilogue), {**arrays, "D": own}, epilogue, SCALARS)
        own[...] = np.inf
        assert np.isinf(whole).all()
    columns_first = np.full((37, 13), np.nan, "float32").T
    check(kernel(epilogue), {**arrays, "D": columns_first}, epilogue, SCALARS)


def test_beta_of_zero_does_not_look_at_the_residual(kernel):
    arrays = problem(13, 37, 41)
    arrays["C"][...] = np.nan
    check(kernel(EVERYTHING), arrays, EVERYTHING, {"alpha": 0.5, "beta": 0.0})


def test_the_residual_may_be_the_output_itself(kernel):
    arrays = problem(29, 37, 100)
    expected = reference(arrays, EVERYTHING, SCALARS)
    arrays["D"] = arrays["C"]
    check(kernel(EVERYTHING), arrays, EVERYTHING, SCALARS, expected=expected)


def test_no_depth_gives_the_epilogue_of_zero_and_no_rows_give_nothing(kernel):
    check(kernel(EVERYTHING), problem(5, 37, 0), EVERYTHING, SCALARS)
    check(kernel(), problem(5, 37, 0))
    for m, n in ((0, 5), (5, 0), (0, 0)):
        check(kernel(EVERYTHING), problem(m, n, 7), EVERYTHING, SCALARS)


def test_nan_and_infinity_arrive_where_they_belong(kernel):
    arrays = problem(13, 37, 41)
    arrays["A"][3, 5], arrays["A"][4, 6], arrays["B"][7, 8], arrays["C"][9, 9] = np.nan, np.inf, -np.inf, np.nan
    expected = reference(arrays, EVERYTHING, SCALARS)
    run(kernel(EVERYTHING), arrays, {"M": 13, "N": 37, "K": 41}, SCALARS)
    assert np.isnan(expected).any() and np.isposinf(expected).any()
    np.testing.assert_array_equal(np.isnan(arrays["D"]), np.isnan(expected))
    np.testing.assert_array_equal(np.isposinf(arrays["D"]), np.isposinf(expected))


def test_batches_are_computed_one_by_one_or_side_by_side(kernel):
    for threads in (1, 2, 7):
        arrays = problem(5, 37, 70, batch=(3,))
        arrays["A"] = np.broadcast_to(arrays["A"][:1], (3, 5, 70))
        check(kernel(EVERYTHING, batch=True), arrays, EVERYTHING, SCALARS, threads=threads, parallel=backwards())


def test_threads_do_not_change_a_single_bit(kernel):
    real = pool.get_pool()
    results = []
    for threads, parallel, handle in ((1, None, None), (3, backwards(), None), (2, real.function, real.handle)):
        arrays = problem(61, 130, 150)
        sizes = {"M": 61, "N": 130, "K": 150}
        run(kernel(EVERYTHING), arrays, sizes, SCALARS, threads=threads, parallel=parallel, pool=handle)
        results.append(arrays["D"])
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize("template", [gemm.REGISTER_TILED, gemm.UNPACKED], ids=lambda t: t.name)
def test_offsets_that_no_half_word_holds_are_reached(template):
    far = (1 << 31) + 3  # elements from one row to the next
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000)
    memory = mmap.mmap(-1, 4 * (far + 64), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
    flat = np.frombuffer(memory, "float32")
    rows = np.lib.stride_tricks.as_strided(flat, (2, 3), (4 * far, 4))
    rows[...] = numbers((2, 3))
    arrays = problem(2, 5, 3)
    arrays["A"] = rows
    check(build(gemm_binding(), template, BLOCKS), arrays)


def test_nothing_is_read_past_the_end_of_an_operand(kernel):
    for m, n, k in ((5, 3 * LANES, 7), (4, 5 * LANES, 33), (13, 37, 41), (1, 1, 1)):
        arrays = {name: before_a_guard(array) for name, array in problem(m, n, k).items()}
        check(kernel(EVERYTHING), arrays, EVERYTHING, SCALARS)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_each_activation_is_fused(activation):
    check(build(gemm_binding("nn", activation), gemm.UNPACKED, BLOCKS), problem(13, 37, 41), activation)


def test_a_layout_only_changes_the_order_of_dimensions():
    m, n, k = 13, 37, 41
    plain = problem(m, n, k)
    expected = reference(plain, "none", SCALARS)
    for layout in ("nt", "tn", "tt"):
        kernel = build(gemm_binding(layout), gemm.REGISTER_TILED, BLOCKS)
        arrays = {"D": np.full((m, n), np.nan, "float32")}
        arrays["A"] = plain["A"].T.copy() if layout[0] == "t" else plain["A"]
        arrays["B"] = plain["B"].T.copy() if layout[1] == "t" else plain["B"]
        run(kernel, arrays, {"M": m, "N": n, "K": k}, SCALARS)
        np.testing.assert_allclose(arrays["D"], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("template", [gemm.SPLIT_K, gemm.UNPACKED_SLABS, gemm.FEW_ROWS_SLABS], ids=lambda t: t.name)
@pytest.mark.parametrize("k", [0, 1, 5, 50, 130])
def test_slabs_and_their_combination_give_the_whole(k, template):
    m, n, split = 13, 37, 6
    arrays = problem(m, n, k)
    arrays["P"] = np.full((split, m, n), np.nan, "float32")
    sizes = {"M": m, "N": n, "K": k, "SPLIT": split}
    slabs = build(gemm_binding(split=True), template, {**BLOCKS, **WHOLE["few_rows"][1], "NR": LANES, "SPLIT": split})
    run(slabs, arrays, sizes, threads=4, parallel=backwards())
    each = -(-k // split)
    for s in range(split):
        part = slice(s * each, min(k, (s + 1) * each))
        want = arrays["A"][:, part].astype(float) @ arrays["B"][part].astype(float)
        np.testing.assert_allclose(arrays["P"][s], want, rtol=0, atol=1e-4)
    combine = build(combine_binding(EVERYTHING), generic.COMBINE, {"SPLIT": split, "ROWS": 4})
    run(combine, arrays, sizes, SCALARS)
    np.testing.assert_allclose(arrays["D"], reference(arrays, EVERYTHING, SCALARS), rtol=0, atol=1e-4)


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("rows", [16, 1024], ids=["several blocks of rows", "one block of rows"])
def test_panels_of_b_are_packed_ahead_while_others_are_at_work(rows, dtype, layout):
    """Groups of panels, a ragged one last; passes over k, a short one last; rows and columns cut between threads."""
    config = {**BLOCKS, "MC": rows, "NC": 1024, "NR": LANES, "KC": 32}
    kernel = build(gemm_binding(layout, EVERYTHING, dtype), gemm.OWN_BLOCKS, config)
    for m, n, k in ((13, 1101, 71), (70, 421, 64), (203, 130, 97), (5, 150, 3)):
        arrays = problem(m, n, k, dtype)
        expected = reference(arrays, EVERYTHING, SCALARS)
        if layout == "nt":
            arrays["B"] = arrays["B"].T.copy()
        for threads in (1, 3):
            arrays["D"][...] = np.nan
            sizes = {"M": m, "N": n, "K": k}
            run(kernel, arrays, sizes, SCALARS, threads=threads, parallel=backwards() if threads > 1 else None)
            tolerance = {"float32": 1e-4, "float64": 1e-10, "bfloat16": 0.3}[dtype]
            np.testing.assert_allclose(arrays["D"].astype(float), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["cache_tiled", "register_tiled", "unpacked"])
def test_an_operand_may_be_computed_on_the_way_and_groups_may_hold_several_axes(name):
    """D[g,m] = sum over k, j of exp(S[m,k,j] - h[m]) * B[j,k,g]; rows (g, m) and columns () of other layouts too."""
    dims = {"g": 3, "m": 7, "k": 5, "j": 4, "n": 6}
    binding = replace(
        gemm_binding(),
        groups={"B": (), "M": ("g", "m"), "N": ("n",), "K": ("k", "j")},
        extents={axis: axis.upper() for axis in "gmnkj"},
        operands={
            "A": ("exp", ("shift", ("load", "S", ("m", "k", "j")), ("load", "h", ("m",)))),
            "B": ("load", "B", ("j", "k", "n")),
        },
        roots=(replace(gemm_binding().roots[0], axes=("n", "m", "g"), value=("acc", "acc")),),
        arrays=tuple(
            Array(array, "float32", tuple(axes))
            for array, axes in (("S", "mkj"), ("h", "m"), ("B", "jkn"), ("D", "nmg"))
        ),
        scalars=(),
    )
    shape = lambda axes: tuple(dims[a] for a in axes)  # noqa: E731
    arrays = {"S": numbers(shape("mkj"), seed=1), "h": numbers(shape("m"), seed=2), "B": numbers(shape("jkn"), seed=3)}
    arrays["S"][2, 3, 1] = -np.inf
    arrays["D"] = np.full(shape("nmg"), np.nan, "float32")
    template, config = WHOLE[name]
    run(build(binding, template, config), arrays, {axis.upper(): size for axis, size in dims.items()}, threads=2)
    want = np.einsum("mkj,jkn->nm", np.exp(arrays["S"].astype(float) - arrays["h"][:, None, None]), arrays["B"])
    np.testing.assert_allclose(arrays["D"], np.broadcast_to(want[:, :, None], shape("nmg")), rtol=1e-5, atol=1e-5)


def test_a_column_group_of_several_axes_is_stored_one_by_one():
    dims = {"m": 5, "n": 3, "h": 7, "k": 9}
    binding = replace(
        gemm_binding(),
        groups={"B": (), "M": ("m",), "N": ("h", "n"), "K": ("k",)},
        extents={axis: axis.upper() for axis in "mnhk"},
        operands={"A": ("load", "A", ("m", "k")), "B": ("load", "B", ("n", "k", "h"))},
        roots=(replace(gemm_binding().roots[0], axes=("n", "m", "h"), value=("relu", ("acc", "acc"))),),
        arrays=tuple(Array(name, "float32", tuple(axes)) for name, axes in (("A", "mk"), ("B", "nkh"), ("D", "nmh"))),
        scalars=(),
    )
    for name in ("contraction", "cache_tiled", "register_tiled", "unpacked"):
        arrays = {"A": numbers((5, 9), seed=1), "B": numbers((3, 9, 7), seed=2)}
        arrays["D"] = np.full((3, 5, 7), np.nan, "float32")
        template, config = WHOLE[name]
        run(build(binding, template, config), arrays, {axis.upper(): size for axis, size in dims.items()})
        want = np.maximum(np.einsum("mk,nkh->nmh", arrays["A"], arrays["B"]), 0)
        np.testing.assert_allclose(arrays["D"], want, rtol=0, atol=1e-5)


def test_sums_stay_in_registers():
    plans = [
        emit.kernel_plan(gemm_binding(), gemm.REGISTER_TILED, {**BLOCKS, "MR": mr, "NR": nv * LANES}, device())
        for mr, nv in ((4, 2), (6, 4), (8, 3), (14, 2), (6, 2), (12, 1))
        if mr * nv + nv + 1 <= device().vector_registers
    ]
    for _, compiled in backends.get("cpu").compile_many(plans, device(), jobs=2, timeout_s=120):
        assert compiled.evidence["hot_loop_stack_accesses"] == 0


def test_the_compiler_of_the_extra_builds_the_same_kernel(monkeypatch):
    pytest.importorskip("ziglang")
    monkeypatch.setenv("KERNSEARCH_CC", f"{sys.executable} -m ziglang cc")
    check(build(gemm_binding("nn", EVERYTHING), gemm.REGISTER_TILED, BLOCKS), problem(13, 37, 41), EVERYTHING, SCALARS)


def test_a_static_assertion_says_what_the_constraint_says():
    """What the space would have refused, the source refuses in the same words."""
    sizes = {"M": 64, "N": 64, "K": 64, "ITEMSIZE": 4, "THREADS": 1}
    for wrong in ({"MR": 14, "NR": 64}, {"NR": LANES // 2}, {"MC": 3}, {"NC": LANES}):
        config = {**BLOCKS, **wrong}
        said = [c.reason for c in gemm.REGISTER_TILED.constraints if not c.holds(config, device(), sizes)]
        plan = emit.kernel_plan(gemm_binding(), gemm.REGISTER_TILED, config, device())
        outcome = next(backends.get("cpu").compile_many([plan], device(), jobs=1))[1]
        assert isinstance(outcome, Exception) and any(reason in str(outcome) for reason in said), (said, outcome)
