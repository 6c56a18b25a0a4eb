from dataclasses import replace

import pytest
from kernsearch.spaces.gemm.templates import cpu as gemm

from kernsearch.backends.cpu import emit
from kernsearch.backends.cpu.device import this_device
from kernsearch.backends.expressions import fold, leaves
from kernsearch.binding import Array, Binding, Root
from kernsearch.sizes import evaluate

CONFIG = {"MC": 48, "NC": 256, "KC": 128, "MR": 6, "NR": 16, "KU": 1}
MN = ("m", "n")


def binding(value=("mul", ("scalar", "alpha"), ("acc", "acc")), **changes):
    reads = {leaf[1]: leaf[2] for leaf in leaves(value, "load")}
    fields = {
        "template": "register_tiled",
        "groups": {"M": ("m",), "N": ("n",), "K": ("k",)},
        "extents": {"m": "M", "n": "N", "k": "K"},
        "operands": {"A": ("load", "A", ("k", "m")), "B": ("load", "B", ("k", "n"))},
        "roots": (Root("D", MN, value),),
        "arrays": tuple(
            Array(name, "float32", axes) for name, axes in {"A": ("k", "m"), "B": ("k", "n"), **reads, "D": MN}.items()
        ),
        "scalars": tuple(dict.fromkeys(leaf[1] for leaf in leaves(value, "scalar"))),
        "acc": "float32",
    }
    return Binding(**{**fields, **changes})


def plan(of, config=CONFIG, template=gemm.REGISTER_TILED):
    return emit.kernel_plan(of, template, config, this_device())


def test_a_plan_names_what_the_call_must_bring_in_the_order_of_the_header():
    made = plan(binding())
    assert made.buffers == ("A", "B", "D", "scratch")
    assert made.sizes == ("M", "N", "K", "A.k", "A.m", "B.k", "B.n", "D.m", "D.n")
    assert made.scalars == ("alpha",)
    for position, member in enumerate(("e_m", "e_n", "e_k", "s_A_k", "s_A_m")):
        assert f".{member} = call->sizes[{position}]," in made.header


def test_a_layout_changes_no_text_that_is_compiled():
    other = binding(
        operands={"A": ("load", "A", ("m", "k")), "B": ("load", "B", ("n", "k"))},
        arrays=(Array("A", "float32", ("m", "k")), Array("B", "float32", ("n", "k")), Array("D", "float32", MN)),
    )
    assert plan(other).header == plan(binding()).header


def test_only_the_templates_own_letters_are_defined():
    assert plan(binding(), {**CONFIG, "ROWS": 4, "SPLIT": 2}).defines == CONFIG


def test_letters_of_other_kernels_are_folded_into_extents():
    made = plan(binding(extents={"m": "M", "n": "N", "k": "ceil(K, SPLIT)"}), {**CONFIG, "SPLIT": 3})
    assert "ceil(K, 3)" in made.sizes


def test_scratch_grows_with_threads_and_with_sums_that_must_wait():
    names = {"M": 100, "N": 100, "K": 1000, "THREADS": 1, "ITEMSIZE": 4}
    own = evaluate(plan(binding()).scratch, names)
    assert evaluate(plan(binding()).scratch, {**names, "THREADS": 2}) == own + 4 * (48 * 128 + 16)
    residual = ("add", ("acc", "acc"), ("load", "C", MN))
    bias = ("add", ("acc", "acc"), ("load", "bias", ("n",)))
    assert evaluate(plan(binding(residual)).scratch, names) == own + 4 * 100 * 100
    assert evaluate(plan(binding(residual)).scratch, {**names, "K": 128}) == own
    assert evaluate(plan(binding(bias)).scratch, names) == own


def test_sums_wait_in_the_output_only_when_nothing_else_is_read_from_its_place():
    for value, partials in (
        (("acc", "acc"), 0),
        (("add", ("acc", "acc"), ("load", "bias", ("n",))), 0),
        (("add", ("acc", "acc"), ("load", "C", MN)), 1),
        (("add", ("acc", "acc"), ("load", "C", ("n", "m"))), 1),
    ):
        assert f"#define KS_PARTIALS {partials}" in plan(binding(value)).header


def test_a_weight_of_zero_reads_nothing():
    value = ("add", ("acc", "acc"), ("weigh", ("scalar", "beta"), ("load", "C", MN)))
    assert "(x->c_beta == 0 ? (ks_v){0} :" in plan(binding(value)).header


def test_an_operand_is_plain_only_when_it_is_loaded_as_it_is():
    assert "#define KS_PLAIN_A 1" in plan(binding()).header
    computed = {**binding().operands, "A": ("exp", ("load", "A", ("k", "m")))}
    assert "#define KS_PLAIN_A 0" in plan(binding(operands=computed)).header


def test_infinite_constants_can_be_written():
    value = ("max", ("acc", "acc"), ("const", float("-inf")))
    assert "ks_splat(-KS_INFINITY)" in plan(binding(value)).header


def test_an_array_of_another_dtype_is_refused():
    odd = replace(binding(), arrays=(Array("A", "float64", ("k", "m")), *binding().arrays[1:]))
    with pytest.raises(ValueError, match="array A"):
        plan(odd)


def test_a_reduction_over_two_axes_cannot_be_cut_into_slabs():
    several = binding(
        groups={"M": ("m",), "N": ("n",), "K": ("k", "j")},
        extents={"m": "M", "n": "N", "k": "K", "j": "J", "s": "SPLIT"},
        slabs={"k": "s"},
    )
    with pytest.raises(ValueError, match="slabs"):
        plan(several, {**CONFIG, "SPLIT": 2})


def test_names_that_c_does_not_know_become_identifiers():
    odd = binding(roots=(Root("D'", MN, ("acc", "acc")),), arrays=(*binding().arrays[:2], Array("D'", "float32", MN)))
    assert "p_D_" in plan(odd).header and "p_D'" not in plan(odd).header


def test_folding_replaces_whole_names_only():
    assert (
        fold("ceil(K, SPLIT) * A.m + MC // M", {"SPLIT": 4, "M": "m1 + m2", "m": 9})
        == "ceil(K, 4) * A.m + MC // (m1 + m2)"
    )
