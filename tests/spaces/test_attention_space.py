"""The op as it is declared: sizes and options, what a derivation holds, and the commands that name a problem."""

from __future__ import annotations

import json
from functools import cache

import pytest
from kernsearch.spaces.attention import edges
from kernsearch.spaces.attention.numerics import offset_of

from kernsearch import backends, model, registry
from kernsearch.cli import main
from kernsearch.derive import Derivation, derive
from kernsearch.errors import ProblemError
from kernsearch.launch import itemsize
from kernsearch.model import ceilings
from kernsearch.rules import all_rules


@pytest.fixture(scope="module", autouse=True)
def own_home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNSEARCH_CACHE", str(tmp_path_factory.mktemp("home")))
        yield


def said(capsys, *words: str):
    try:
        main([*words])
    except SystemExit as ended:
        assert ended.code in (0, None), capsys.readouterr().err
    return capsys.readouterr().out


@cache
def derived(shape="1x8x1024x1024x64", **options) -> Derivation:
    of = registry.problem("attention", shape, "float32", **options)
    return derive(of, registry.op(of.op), registry.templates("cpu"))


def test_the_values_dimension_may_be_left_out():
    one = registry.problem("attention", "2x4x16x32x64")
    assert one == registry.problem("attention", (2, 4, 16, 32, 64, 64))
    assert one.key == "attention 2x4x16x32x64x64 float32 causal=none layout=bhsd lse=no query_offset=none"


def test_fewer_heads_of_keys_are_another_op_with_the_group_as_a_size():
    grouped = registry.problem("attention", "2x12x16x32x64", kv_heads=3, causal=True)
    assert (grouped.op, grouped.shape) == ("grouped_attention", (2, 3, 4, 16, 32, 64, 64))
    assert grouped.option("causal") == "bottom-right"
    assert registry.problem("attention", "2x12x16x32x64", kv_heads=12).op == "attention"


def test_options_may_be_called_as_in_the_public_function():
    asked = registry.problem("attention", "2x4x16x32x64", return_lse=True, scale=0.3)
    assert asked == registry.problem("attention", "2x4x16x32x64", lse="yes")


@pytest.mark.parametrize(
    "shape, options, words",
    [
        ("2x4x16x32", {}, "want 6 sizes, BxHxQxKxDxE"),
        ("2x4x16x32x64", {"kv_heads": 3}, "kv_heads 3: 4 heads are no multiple of it"),
        ("2x4x16x32x64", {"kv_heads": "some"}, "kv_heads 'some': want a whole number"),
        ("2x4x16x32x64", {"kv_heads": 0}, "kv_heads 0: want at least 1"),
        ("2x4x16x32x64", {"scale": "big"}, "scale 'big': want a number"),
        ("2x4x16x32x64", {"return_lse": True, "lse": "no"}, "return_lse True beside lse 'no': want one or the other"),
        ("2x4x16x32x64", {"causal": "left"}, "causal 'left': want one of none, bottom-right, top-left"),
        ("2x4x16x32x64", {"causal": True, "query_offset": "x"}, "query_offset 'x': want none or a whole number"),
    ],
)
def test_what_makes_no_problem_is_said_in_a_line(shape, options, words):
    with pytest.raises(ProblemError, match=words):
        registry.problem("attention", shape, **options)


@pytest.mark.parametrize("causal, words", [("none", "without causal"), ("top-left", "beside causal=top-left")])
def test_an_offset_without_a_mask_or_beside_another_place_of_it_is_an_error(causal, words):
    of = registry.problem("attention", "1x1x4x4x4", query_offset=2, causal=causal)
    with pytest.raises(ProblemError, match=f"query_offset {words}"):
        registry.op("attention").root(of)


def test_operations_of_a_causal_problem_are_those_of_the_pairs_that_are_seen():
    op = registry.op("attention")

    def pairs(shape, **options):
        of = registry.problem("attention", shape, **options)
        return op.flops(of) / (2 * (of.shape[-2] + of.shape[-1]) * of.shape[0] * of.shape[1])

    assert pairs("2x3x5x7x4") == 35
    assert pairs("2x3x5x5x4", causal=True) == 15
    assert pairs("1x1x5x2x4", causal=True) == 3
    assert pairs("1x1x2x5x4", causal="top-left") == 3
    assert pairs("1x1x2x5x4", causal=True, query_offset=1) == 5


def test_offsets():
    def offset(**options):
        return offset_of(registry.problem("attention", "1x1x5x7x4", **options))

    assert offset() is None and offset(causal="bottom-right") == 2 and offset(causal="top-left") == 0
    assert offset(causal=True, query_offset=-3) == -3


@pytest.mark.parametrize("grouped", [False, True])
def test_awkward_shapes_have_the_sizes_of_their_op(grouped):
    of = registry.problem("attention", "1x4x64x64x32", **({"kv_heads": 2} if grouped else {}))
    shapes = edges(of, {"MC": 384, "KC": 512, "MR": 6, "NR": 16, "SPLIT": 4})
    assert all(len(shape) == len(of.shape) and min(shape) >= 1 for shape in shapes)
    assert any(q > k for *_, q, k, _, _ in shapes) and any(q == 1 for *_, q, _, _, _ in shapes)


@pytest.mark.parametrize("options", [{}, {"causal": "bottom-right", "lse": "yes"}, {"kv_heads": 2, "causal": True}],
                         ids=["plain", "causal, lse", "grouped"])  # fmt: skip
def test_the_ways_are_derived_and_bounded(options):
    found = derived(**options)
    assert len(found.graph) < 300
    names = {variant.name for variant in found.variants}
    assert {"flash", "flash_packed", "flash_slabs+combine"} <= names
    flash = found.variant("flash")
    assert [step.rule for step in flash.path].count("merge_reductions") == 2
    assert {"defer_division", "fuse"} <= {step.rule for step in flash.path}
    (kernel,) = flash.kernels
    skips = [step for step in kernel.annotations if step[0] == "skip"]
    assert bool(skips) == ("causal" in options)


@pytest.mark.parametrize("rule", ["merge_reductions", "defer_division", "fuse"])
def test_without_one_of_its_rules_no_pass_over_the_keys_is_derived(rule):
    from kernsearch.derive import explore

    of = registry.problem("attention", "1x2x64x64x32")
    op = registry.op("attention")
    rules = [r for r in all_rules() if r.name != rule]
    found = explore(op.root(of), registry.templates("cpu"), {**op.sizes(of), "ITEMSIZE": 4}, rules)
    assert found.variants and not any("flash" in variant.name for variant in found.variants)


def test_of_thousands_of_variants_the_model_keeps_the_fused_and_good_unfused_ones():
    device = backends.get("cpu").device()
    of = registry.problem("attention", "1x8x1024x1024x64", "float32")
    sizes = {**registry.op(of.op).sizes(of), "THREADS": 2, "ITEMSIZE": itemsize(of.dtype)}
    variants = derived().variants
    assert len(variants) > 1000
    kept = model.foremost(variants, device, sizes, ceilings.guess(device), 64)
    names = [variant.name for variant in kept]
    assert len(kept) == 64 and "flash_packed" in names
    assert any(len(variant.partition.kernels) == 3 for variant in kept)
    assert [v.name for v in variants if v.name in set(names)] == names
    assert model.foremost(variants[:5], device, sizes, ceilings.guess(device), 64) == variants[:5]


def test_an_option_of_an_op_may_stand_by_its_name_and_others_are_unknown(capsys):
    words = ("cache", "why", "attention", "--shape", "1x4x33x40x16", "--device", "cpu")
    assert "grouped_attention" in said(capsys, *words, "--kv-heads", "2", "--causal", "true")
    assert "lse=yes" in said(capsys, *words, "--return-lse", "--scale", "0.3")
    wrong = {("--heads-of-k", "2"): "No such option", ("--kv-heads",): "kv_heads 'true': want a whole number"}
    for more, told in wrong.items():
        with pytest.raises(SystemExit) as ended:
            main([*words, *more])
        assert ended.value.code == 2 and told in capsys.readouterr().err


def test_commands_take_the_options_of_the_op(capsys):
    words = ("attention", "--shape", "1x4x33x40x16", "--device", "cpu", "--causal", "true", "--kv-heads=2")
    told = json.loads(said(capsys, "tune", *words, "--trials", "2", "--timeout", "60", "--json"))
    key = "grouped_attention 1x2x2x33x40x16x16 float32 causal=bottom-right layout=bhsd lse=no query_offset=none"
    assert told["problem"] == key and told["counts"]["measured"] >= 1
    assert "merge_reductions" in said(capsys, "explain", *words)
    assert said(capsys, "cache", "why", *words).startswith("exact")
