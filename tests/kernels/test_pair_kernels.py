"""Kernels of gemm for pairs of bfloat16: AMX tiles and AVX-512 BF16 where the CPU has them, and everywhere the same
sources with the loop that needs neither, which the units' packing, edges and sums pass through as well."""

import re
import sys
from dataclasses import replace
from functools import cache

import msgspec
import numpy as np
import pytest
from gemm_bindings import (
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
from hypothesis import given, settings
from hypothesis import strategies as st
from kernsearch.spaces.gemm.templates import pairs
from kernsearch.spaces.generic.templates import cpu as generic
from on_cpu import bench_of, compiled
from twins import twin

from kernsearch import backends, registry
from kernsearch.backends.cpu import pool
from kernsearch.candidate import lower
from kernsearch.derive import derive
from kernsearch.errors import Rejected

AMX = {"MC": 64, "NC": 64, "KC": 256, "MR": 32, "NR": 32}
VECTORS = {"MC": 32, "NC": 64, "KC": 256, "MR": 6, "NR": 32, "KU": 2}
SHAPES = {
    "tiles": (pairs.AMX_PAIRS, AMX),
    "tiles side by side": (pairs.AMX_PAIRS, {**AMX, "MR": 16, "NR": 64}),
    "tiles one above the other": (pairs.AMX_PAIRS, {**AMX, "MR": 64, "NR": 16}),
    "vectors": (pairs.VECTOR_PAIRS, VECTORS),
    "vectors of four": (pairs.VECTOR_PAIRS, {**VECTORS, "MR": 4, "NR": 64}),
    "vectors of one row": (pairs.VECTOR_PAIRS, {**VECTORS, "MR": 1, "NR": 16}),
}
UNITS = {"tiles": "amx_bf16", "vectors": "avx512_bf16"}
EVERYTHING = "bias,gelu,residual"
SCALARS = {"alpha": 0.5, "beta": 2.0}
AWKWARD = [(1, 1, 1), (3, 13, 129), (13, 127, 1), (127, 129, 13), (129, 3, 127), (1, 129, 127), (70, 90, 700)]
SMALLEST_NORMAL = 2.0**-126


def portable(template):
    """The template with the loop that any CPU has."""
    flags = (flag for flag in template.flags if not flag.startswith("-m"))
    return replace(template, flags=(*flags, "-DKS_EXACT"))


def has(name):
    return bool(device().facts.get(UNITS[name.split()[0]]))


CASES = [
    pytest.param((name, anywhere), id=f"{name}, any CPU" if anywhere else name, marks=marks)
    for name in SHAPES
    for anywhere, marks in (
        (True, ()),
        (False, pytest.mark.skipif(not has(name), reason="this CPU has no such unit")),
    )
]


@pytest.fixture(params=CASES)
def kernel(request):
    """build(epilogue, layout, batch): a kernel that computes all of D."""
    return maker(*request.param)


def maker(name, anywhere):
    template, config = SHAPES[name]
    return made(portable(template) if anywhere else template, tuple(config.items()))


@cache
def made(template, config):
    @cache
    def make(epilogue="none", layout="nn", batch=False):
        return build(gemm_binding(layout, epilogue, "bfloat16", batch=batch), template, dict(config))

    return make


def bf16(values):
    return np.asarray(values, "float32").astype(numbers((1,), "bfloat16").dtype)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("epilogue", ["none", EVERYTHING])
def test_a_kernel_computes_the_textbook_at_awkward_sizes(kernel, epilogue, threads):
    for m, n, k in AWKWARD:
        parallel = backwards() if threads > 1 else None
        arrays = problem(m, n, k, "bfloat16")
        check(kernel(epilogue), arrays, epilogue, SCALARS, threads=threads, parallel=parallel)


def test_operands_may_have_any_strides(kernel):
    m, n, k = 45, 70, 75
    plain = problem(m, n, k, "bfloat16")
    views = {
        "transposed": {"A": plain["A"].T.copy().T, "B": plain["B"].T.copy().T},
        "negative": {"A": plain["A"][::-1, ::-1], "B": plain["B"][::-1, ::-1], "bias": plain["bias"][::-1]},
        "broadcast": {"A": np.broadcast_to(plain["A"][:1], (m, k)), "B": np.broadcast_to(plain["B"][:, :1], (k, n)),
                      "C": np.broadcast_to(plain["C"][0, 0], (m, n)), "bias": np.broadcast_to(plain["bias"][:1], n)},
        "spaced": {x: numbers((2 * r, 3 * c), "bfloat16")[::2, ::3] for x, r, c in (("A", m, k), ("B", k, n))},
        "spaced rows": {"A": numbers((2 * m, k), "bfloat16")[::2], "B": numbers((k, n + 3), "bfloat16")[:, 3:]},
        "columns first": {"D": np.full((n, m), np.nan, plain["D"].dtype).T},
    }  # fmt: skip
    for view in views.values():
        result = np.full((m, n), np.nan, plain["D"].dtype)
        check(kernel(EVERYTHING), {**plain, "D": result, **view}, EVERYTHING, SCALARS)


@settings(max_examples=25, deadline=None)
@given(
    case=st.sampled_from([(name, anywhere) for name in SHAPES for anywhere in (True, False) if anywhere or has(name)]),
    sizes=st.tuples(*[st.integers(0, 100)] * 2, st.integers(0, 300)),
    layout=st.sampled_from(["nn", "nt", "tn", "tt"]),
    threads=st.integers(1, 4),
)
def test_small_integers_come_out_exactly(case, sizes, layout, threads):
    m, n, k = sizes
    rng = np.random.default_rng(m * n + k)
    a, b = (rng.integers(-3, 4, shape).astype("float32") for shape in ((m, k), (k, n)))
    arrays = {"A": bf16(a), "B": bf16(b), "D": bf16(np.full((m, n), np.nan))}
    expected = bf16(a @ b)
    for name, word in zip("AB", layout, strict=True):
        arrays[name] = arrays[name].T.copy() if word == "t" else arrays[name]
    parallel = backwards() if threads > 1 else None
    run(maker(*case)("none", layout), arrays, {"M": m, "N": n, "K": k}, threads=threads, parallel=parallel)
    np.testing.assert_array_equal(arrays["D"].astype("float32"), expected.astype("float32"))


def test_nothing_is_read_past_the_end_of_an_operand(kernel):
    for m, n, k in ((5, 48, 7), (32, 32, 33), (13, 37, 41), (1, 1, 1), (64, 96, 64)):
        arrays = {name: before_a_guard(array) for name, array in problem(m, n, k, "bfloat16").items()}
        check(kernel(EVERYTHING), arrays, EVERYTHING, SCALARS)
        arrays["A"], arrays["B"] = (before_a_guard(arrays[x].T.copy()).T for x in "AB")
        check(kernel(EVERYTHING), arrays, EVERYTHING, SCALARS)


def test_nothing_is_written_between_the_rows_of_an_output(kernel):
    arrays = problem(45, 37, 41, "bfloat16")
    whole = bf16(np.full((90, 40), np.inf))
    check(kernel(EVERYTHING), {**arrays, "D": whole[::2, 3:]}, EVERYTHING, SCALARS)
    whole[::2, 3:] = np.inf
    assert np.isinf(whole.astype("float32")).all()


def test_no_depth_gives_the_epilogue_of_zero_and_no_rows_give_nothing(kernel):
    check(kernel(EVERYTHING), problem(5, 37, 0, "bfloat16"), EVERYTHING, SCALARS)
    for m, n in ((0, 5), (5, 0), (0, 0)):
        check(kernel(EVERYTHING), problem(m, n, 7, "bfloat16"), EVERYTHING, SCALARS)


def test_nan_and_infinity_arrive_where_they_belong(kernel):
    arrays = problem(45, 37, 41, "bfloat16")
    arrays["A"][3, 5], arrays["A"][44, 40], arrays["B"][7, 8], arrays["C"][9, 9] = np.nan, np.inf, -np.inf, np.nan
    expected = reference(arrays, EVERYTHING, SCALARS)
    run(kernel(EVERYTHING), arrays, {"M": 45, "N": 37, "K": 41}, SCALARS)
    got = arrays["D"].astype("float32")
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(np.isposinf(got), np.isposinf(expected))


def test_batches_are_computed_one_by_one_or_side_by_side(kernel):
    for threads in (1, 2, 7):
        arrays = problem(45, 37, 70, "bfloat16", batch=(3,))
        arrays["A"] = np.broadcast_to(arrays["A"][:1], (3, 45, 70))
        check(kernel(EVERYTHING, batch=True), arrays, EVERYTHING, SCALARS, threads=threads, parallel=backwards())


def test_threads_do_not_change_a_single_bit(kernel):
    """Of numbers some of whose panels have subnormal products, so that both loops take part."""
    real, results = pool.get_pool(), []
    for threads, parallel, handle in ((1, None, None), (3, backwards(), None), (2, real.function, real.handle)):
        arrays = problem(161, 130, 350, "bfloat16")
        arrays["A"][70:80] *= bf16(2.0**-70)
        arrays["B"][:, 40:50] *= bf16(2.0**-70)
        sizes = {"M": 161, "N": 130, "K": 350}
        run(kernel(EVERYTHING), arrays, sizes, SCALARS, threads=threads, parallel=parallel, pool=handle)
        results.append(arrays["D"].astype("float32"))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


# -- subnormal numbers, which the units flush


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (2.0**-66, 2.0**-66),  # products are
        (2.0**-130, 1.0),  # one operand is
        (1.0, 2.0**-130),
        (1.5 * 2.0**-63, 1.5 * 2.0**-63),  # differences of products may be
        (2.0**-56, 2.0**-56),  # as small as neither product nor difference is
    ],
)
def test_subnormal_numbers_are_kept(kernel, a, b):
    m, n, k = 45, 37, 333
    rng = np.random.default_rng(0)
    arrays = {
        "A": bf16(rng.choice([1, 1.0078125, -1, -1.0078125, 0], (m, k)) * a),
        "B": bf16(rng.choice([1, 1.0078125, -1, -1.0078125], (k, n)) * b),
        "D": bf16(np.full((m, n), np.nan)),
    }
    expected = reference(arrays, "none", {"alpha": 1.0, "beta": 0.0})
    run(kernel("none"), arrays, {"M": m, "N": n, "K": k}, {"alpha": 2.0**40})
    np.testing.assert_allclose(arrays["D"].astype(float), expected * 2.0**40, rtol=2.0**-8, atol=0)


def test_subnormal_sums_are_kept_when_what_comes_after_is_zero(kernel):
    """In a pass of its own: nothing in it could be flushed, but for the sums that it starts with."""
    m, n, k = 45, 37, 700
    rng = np.random.default_rng(0)
    arrays = {"A": bf16(rng.standard_normal((m, k)) * 2.0**-66), "B": bf16(rng.standard_normal((k, n)) * 2.0**-66)}
    for later, other in (("A", "B"), ("B", "A")):
        operands = {later: arrays[later].copy(), other: arrays[other], "D": bf16(np.full((m, n), np.nan))}
        (operands[later] if later == "B" else operands[later].T)[256:] = 0
        expected = reference(operands, "none", {"alpha": 1.0, "beta": 0.0})
        run(kernel("none"), operands, {"M": m, "N": n, "K": k}, {"alpha": 2.0**40})
        error = np.abs(operands["D"].astype(float) - expected * 2.0**40)
        assert (error <= 2.0**-8 * np.abs(expected * 2.0**40) + 2.0**40 * 2.0**-140).all()


@given(st.integers(1, 141), st.tuples(*[st.integers(0, (10 << 7) - 1)] * 4))
def test_what_the_tails_of_panels_let_through_has_no_subnormal_sums(exponent, more):
    """The rule of pairs.h, on two products of numbers that are no smaller than the smallest of their panels."""
    least = np.array([exponent, 142 - exponent] * 2) << 7
    first, second, third, fourth = (least + more).astype(np.uint16).view(bf16([0]).dtype).astype(float)
    for total in (first * second, first * second - third * fourth):
        assert total == 0 or abs(total) >= SMALLEST_NORMAL


# -- slabs


@pytest.mark.parametrize("k", [0, 1, 5, 50, 130, 1001])
@pytest.mark.parametrize("case", CASES)
def test_slabs_and_their_combination_give_the_whole(case, k):
    name, anywhere = case
    m, n, split = 45, 37, 6
    template, config = SHAPES[name]
    slabs_of = {pairs.AMX_PAIRS: pairs.AMX_PAIRS_K, pairs.VECTOR_PAIRS: pairs.VECTOR_PAIRS_K}[template]
    arrays = problem(m, n, k, "bfloat16")
    arrays["P"] = np.full((split, m, n), np.nan, "float32")
    sizes = {"M": m, "N": n, "K": k, "SPLIT": split}
    binding = gemm_binding("nn", "none", "bfloat16", split=True)
    kernel = build(binding, portable(slabs_of) if anywhere else slabs_of, {**config, "SPLIT": split})
    run(kernel, arrays, sizes, threads=4, parallel=backwards())
    each = -(-k // split)
    for s in range(split):
        part = slice(s * each, min(k, (s + 1) * each))
        want = arrays["A"][:, part].astype(float) @ arrays["B"][part].astype(float)
        np.testing.assert_allclose(arrays["P"][s], want, rtol=0, atol=1e-3)
    combine = build(combine_binding(EVERYTHING, "bfloat16"), generic.COMBINE, {"SPLIT": split, "ROWS": 4})
    run(combine, arrays, sizes, SCALARS)
    expected = reference(arrays, EVERYTHING, SCALARS)
    np.testing.assert_allclose(arrays["D"].astype(float), expected, rtol=2.0**-8, atol=1e-3)


# -- through the gates, and what a broken one does

PROBLEM = registry.problem("gemm", "141x137x301", "bfloat16", epilogue="bias,relu,residual")
VARIANTS = {"tiles": ("amx_pairs", AMX), "vectors": ("avx512_pairs", VECTORS)}
WHERE = [
    pytest.param(name, anywhere, id=f"{name}, any CPU" if anywhere else name, marks=marks)
    for name in VARIANTS
    for anywhere, marks in (
        (True, ()),
        (False, pytest.mark.skipif(not has(name), reason="this CPU has no such unit")),
    )
]
TWINS = {
    "forgets the last step of an odd depth": {"k + 1 < depth ? count : 0": "k + 2 < depth ? count : 0"},
    "sums of the pass before are forgotten": {"sums, !first, *exact, soon": "sums, 0, *exact, soon"},
    "packs the first pass again": {"at.K = start + k;": "at.K = start;"},
    "the first strip again": {"smaller += strip_size": "smaller += 0 * strip_size"},
    "the columns of another strip": {".N = i.N + c * KS_NR}": ".N = c * KS_NR}"},
    "the piece before": {"if (!by_pass) pack(": "if (!by_pass && !first) pack("},
}


@cache
def derived(problem):
    return derive(problem, registry.op("gemm"), registry.templates("cpu"))


def plan_of(name, anywhere, of=PROBLEM):
    """The plan of a variant and its config."""
    variant, config = VARIANTS[name]
    plan = lower(derived(of).variant(variant), config, of, backends.get("cpu"), device())
    if not anywhere:
        return plan, config
    first = msgspec.structs.replace(plan.kernels[0], flags=portable(SHAPES[name][0]).flags)
    return msgspec.structs.replace(plan, kernels=(first, *plan.kernels[1:])), config


@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize(("name", "anywhere"), WHERE)
def test_a_kernel_passes_all_gates(name, anywhere, layout, worker):
    of = registry.problem("gemm", "131x137x301", "bfloat16", epilogue="bias,relu,residual", layout=layout)
    plan, config = plan_of(name, anywhere, of)
    evidence = bench_of(of, device(), worker).examine(plan, compiled(plan, device()), config)
    assert evidence["full"] and evidence["edge_runs_skipped"] == 0


@pytest.mark.parametrize("what", TWINS)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_broken_twin_is_refused(name, what, worker, tmp_path):
    plan, config = plan_of(name, True)
    broken, bench = twin(plan, TWINS[what], tmp_path), bench_of(PROBLEM, device(), worker)
    with pytest.raises(Rejected) as refused:
        bench.examine(broken, compiled(broken, device()), config)
    assert refused.value.gate == "correctness"
    assert re.search("off by|should be|unwritten|read from", refused.value.reason), refused.value.reason


@pytest.mark.parametrize(("name", "anywhere"), [where for where in WHERE if not where.values[1]])
def test_a_kernel_that_trusts_the_unit_with_any_number_is_refused(name, anywhere, worker, tmp_path):
    plan, config = plan_of(name, anywhere)
    broken = twin(plan, {"return !*a_tail || !*b_tail ||": "return 0 &&"}, tmp_path)
    with pytest.raises(Rejected, match="subnormal products"):
        bench_of(PROBLEM, device(), worker).examine(broken, compiled(broken, device()), config)


@pytest.mark.parametrize("name", VARIANTS)
def test_no_other_device_is_offered_a_unit(name):
    variant, config = VARIANTS[name]
    sizes = {"M": 131, "N": 137, "K": 301, "ITEMSIZE": 2, "THREADS": 2}
    constraints = derived(PROBLEM).variant(variant).constraints
    unit = UNITS[name]
    without = replace(device(), facts={**device().facts, unit: 0})
    said = [c.reason for c in constraints if not c.holds(config, without, sizes)]
    assert len(said) == 1 and said[0].startswith("the CPU has no ")
    granted = replace(device(), facts={**device().facts, unit: 1, "vector_registers": 32, "l2_bytes": 1 << 20})
    assert all(c.holds(config, granted, sizes) for c in constraints)


@pytest.mark.parametrize(("name", "anywhere"), WHERE)
def test_the_compiler_of_the_extra_builds_the_same_kernel(name, anywhere, monkeypatch):
    pytest.importorskip("ziglang")
    monkeypatch.setenv("KERNSEARCH_CC", f"{sys.executable} -m ziglang cc")
    template, config = SHAPES[name]
    kernel = build(gemm_binding("nn", EVERYTHING, "bfloat16"), portable(template) if anywhere else template, config)
    check(kernel, problem(70, 90, 333, "bfloat16"), EVERYTHING, SCALARS)


def test_slabs_of_float32_are_no_kernel_of_pairs():
    of = registry.problem("gemm", "131x137x301", "float32")
    names = {template.name for variant in derived(of).variants for template in variant.templates}
    assert names.isdisjoint(template.name for template in pairs.templates())
