from dataclasses import replace

import explored
import pytest
import textbook

from kernsearch.derive import replay
from kernsearch.meaning.loops import may_skip
from kernsearch.program import Site
from kernsearch.program.sketch import Sketch
from kernsearch.rules.schedule import Trie, apply, in_order, refusal, symbols

OPS = ("gemm", "softmax", "attention", "moments", "norm_product", "product_softmax")


def gemm():
    program = textbook.gemm("none")
    return program, next(kernel for kernel in program.kernels if kernel.anchors)


def attention(name="flash"):
    program = explored.derivation("attention").variant(name).partition
    return program, program.kernels[0]


def key_of(program, name):
    return program.keys[name]


def annotated(program, kernel, *steps):
    program = program.annotated(kernel.label, *steps)
    return program, program.kernel(kernel.label)


@pytest.mark.parametrize("op", OPS)
def test_schedules_of_a_kernel_are_a_trie_in_one_fixed_order(op):
    for trie in explored.derivation(op).tries.values():
        for path, _ in trie.leaves():
            assert path == in_order(path)
            assert len(set(path)) == len(path)
        paths = [path for path, _ in trie.leaves()]
        prefixes = {path[:n] for path in paths for n in range(len(path) + 1)} | {()}
        assert trie.states() == len(prefixes)


@pytest.mark.parametrize("op", OPS)
def test_annotations_hold_symbols_and_never_numbers(op):
    def words(part):
        return [w for p in part for w in words(p)] if isinstance(part, tuple) else [part]

    for trie in explored.derivation(op).tries.values():
        for path, _ in trie.leaves():
            assert all(isinstance(word, str) for word in words(path))


def test_annotations_grow_only_while_some_template_has_them():
    program, kernel = gemm()
    goals = {"a": (("tile", ("m",), "block", "BM"), ("grid", "persistent")), "b": (("tile", ("m",), "block", "BM"),)}
    trie = Trie.of(goals)
    assert trie.states() == 3
    assert dict((name, path) for path, name in trie.leaves()) == {n: in_order(s) for n, s in goals.items()}
    assert kernel.annotations == () and program.annotations == {}


def test_tries_stay_small_where_free_order_would_not():
    states = {op: sum(t.states() for t in explored.derivation(op).tries.values()) for op in ("gemm", "attention")}
    leaves = sum(len(list(t.leaves())) for t in explored.derivation("attention").tries.values())
    assert states["gemm"] < 200
    assert states["attention"] < 2000
    assert states["attention"] < 10 * leaves


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_every_schedule_step_of_every_variant_may_be_added_and_replays(op, backend):
    derivation = explored.derivation(op, backend)
    for variant in derivation.variants[:60]:
        assert replay(derivation.root, variant.steps).key == variant.program.key


def test_symbols_come_in_the_order_of_the_steps():
    steps = (("tile", ("m",), "block", "BM"), ("move", "v", "async", "STAGES"), ("move", "w", "async", "STAGES"))
    assert symbols(steps) == ("BM", "STAGES")


def test_a_step_applies_to_the_kernel_of_its_site_alone():
    program, kernel = gemm()
    step = ("tile", ("m",), "block", "BM")
    site = program.site(kernels=(kernel.label,), choice=step)
    scheduled = apply(program, site)
    assert scheduled is not None
    assert scheduled.kernel(kernel.label).annotations == (step,)
    assert scheduled.key != program.key
    assert apply(program, replace(site, kernels=("another",))) is None
    assert apply(scheduled, site) is None  # that kernel is not there any more
    assert apply(program, Site.from_json(site.to_json())).key == scheduled.key


WRONG = {
    "no such kind": (("paint", "red"), "is not a kind of step"),
    "no such level": (("tile", ("m",), "galaxy", "BM"), "want one of block"),
    "no such axis": (("tile", ("z",), "block", "BM"), "no axis z"),
    "a number": (("tile", ("m",), "block", 64), "want a symbol"),
    "blocks over a sum": (("tile", ("k",), "block", "BK"), "must be split"),
    "no such value": (("keep", "0123", "shared"), "neither computes nor reads"),
    "no producer": (("roles", "producer_consumer"), "nothing for a producer"),
    "no slabs": (("combine", "k", "atomic"), "combines no slabs"),
    "no mask": (("skip", ("k",)), "does not leave every field as it is"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_step_that_cannot_be_right_is_refused_with_a_reason(what):
    step, reason = WRONG[what]
    program, kernel = gemm()
    assert reason in refusal(program, kernel, step)
    assert apply(program, program.site(kernels=(kernel.label,), choice=step)) is None


def test_steps_come_in_order_and_once():
    program, kernel = gemm()
    unit = ("unit", key_of(program, kernel.anchors[0]), "mma")
    tile = ("tile", ("m",), "block", "BM")
    program, kernel = annotated(program, kernel, tile, unit)
    assert "comes after unit" in refusal(program, kernel, ("tile", ("n",), "block", "BN"))
    assert "already" in refusal(program, kernel, unit)
    program, kernel = gemm()
    program, kernel = annotated(program, kernel, tile)
    assert "has a block tile already" in refusal(program, kernel, ("tile", ("m",), "block", "MC"))
    assert refusal(program, kernel, ("tile", ("n",), "block", "BN")) == ""


def test_a_unit_runs_reductions_only():
    program, kernel = gemm()
    assert "only a reduction" in refusal(program, kernel, ("unit", key_of(program, "A"), "mma"))
    assert refusal(program, kernel, ("unit", key_of(program, kernel.anchors[0]), "simd")) == ""


def test_roles_need_a_move_that_runs_by_itself():
    program, kernel = gemm()
    for how, allowed in (("sync", False), ("async", True), ("bulk", True)):
        scheduled, with_move = annotated(program, kernel, ("move", key_of(program, "A"), how))
        assert (refusal(scheduled, with_move, ("roles", "producer_consumer")) == "") is allowed


def test_masked_tiles_may_be_skipped_where_the_mask_annihilates():
    program, kernel = attention()
    assert may_skip(program, kernel, "k")
    assert not may_skip(program, kernel, "d")
    assert refusal(program, kernel, ("skip", ("k",))) == ""


def test_masked_tiles_may_not_be_skipped_where_something_is_added_after_the_mask_is_gone():
    s = Sketch({"q": "Q", "k": "K"}, acc="float32")
    x = s.input("X", "qk", "float32")
    masked = s.map("masked", ("mask", x, "q", "k", "0"))
    shifted = s.map("shifted", ("add", ("exp", masked), 1.0))
    program = s.build(Y=s.reduce("Y", "sum", shifted, over="k"))
    program = program.moved(dict.fromkeys(program.members, 0))
    assert not may_skip(program, program.kernels[0], "k")
    plain = s.build(Z=s.reduce("Z", "sum", ("exp", masked), over="k"))
    plain = plain.moved(dict.fromkeys(plain.members, 0))
    assert may_skip(plain, plain.kernels[0], "k")


def test_atomics_combine_one_field_that_nothing_follows():
    program = replace(explored.derivation("softmax").variant("cluster_row").partition, annotations={})
    assert "one field" in refusal(program, program.kernels[0], ("combine", "s", "atomic"))
    assert refusal(program, program.kernels[0], ("combine", "s", "cluster")) == ""


def test_steps_given_in_any_order_make_one_path():
    tile, skip, unit = ("tile", ("m",), "block", "BM"), ("skip", ("k",)), ("unit", "v", "mma")
    assert in_order((skip, unit, tile)) == in_order((tile, skip, unit)) == (tile, unit, skip)
    assert Trie.of({"a": (skip, tile), "b": (tile, skip)}).states() == 3
