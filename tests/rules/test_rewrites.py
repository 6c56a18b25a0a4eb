import pytest
import textbook
from explored import AWKWARD, differs

from kernsearch.errors import KernsearchError
from kernsearch.program import Program, Site
from kernsearch.program.sketch import Sketch
from kernsearch.rules import Step, all_rules, replay, rule
from kernsearch.rules.algebra import defer_division, merge_reductions, row_correction
from kernsearch.rules.fusion import clone_producer, fuse, fuse_epilogues, fuse_maps, fuse_prologues, fuse_siblings
from kernsearch.rules.split import split_reduction


def kernels(p: Program) -> list[tuple[str, ...]]:
    return [kernel.members for kernel in p.kernels]


def apply(p: Program, *rules) -> Program:
    """The first result of each rule in turn."""
    for one in rules:
        p = next(iter(one(p)))[1]
    return p


@pytest.mark.parametrize("op", [*textbook.ROOTS])
@pytest.mark.parametrize("one", all_rules(), ids=lambda r: r.name)
def test_a_rule_keeps_the_meaning_and_its_argument(op, one):
    root = textbook.ROOTS[op]()
    before = root.key
    for site, reached in one(root):
        assert not differs(root, reached, AWKWARD)
        assert reached.key != before and site
    assert root.key == before


@pytest.mark.parametrize("op", [*textbook.ROOTS])
@pytest.mark.parametrize("one", all_rules(), ids=lambda r: r.name)
def test_sites_of_a_rule_are_all_different(op, one):
    sites = [site for site, _ in one(textbook.ROOTS[op]())]
    assert len(set(sites)) == len(sites)


def test_merging_gives_the_statistics_of_online_softmax():
    p = apply(textbook.softmax(), merge_reductions)
    m, total = p.nodes["m"].fields
    assert (m.monoid, total.monoid) == ("max", "sum")
    assert total.body == ("exp", ("shift", ("arg", 0), ("field", "m")))
    assert "l" not in p.nodes


def test_merging_twice_gives_flash_attention_in_either_order():
    one = apply(textbook.attention(), defer_division)
    keys = set()
    for _, first in merge_reductions(one):
        for _, second in merge_reductions(first):
            keys.add(second.key)
            (state,) = [node for node in second.nodes.values() if len(node.fields) == 3]
            assert {len(f.axes) for f in state.fields} == {4, 5}
    assert len(keys) == 1


def test_a_sum_that_divides_by_the_other_sum_does_not_merge():
    online = apply(textbook.attention(), merge_reductions)
    assert not list(merge_reductions(online))
    assert list(merge_reductions(apply(online, defer_division)))


def test_mask_and_scale_are_seen_through_and_stay_outside():
    p = apply(textbook.attention(), merge_reductions)
    assert [use.node for use in p.nodes["m"].args] == ["masked"]


def test_a_division_that_depends_on_the_reduced_axis_is_not_deferred():
    s = Sketch({"m": "M", "k": "K"}, acc="float32")
    x, w = s.input("X", "mk", "float32"), s.input("W", "k", "float32")
    p = s.build(Y=s.dot("y", s.map("d", ("div", x, w)), w, over="k"))
    assert not list(defer_division(p))


@pytest.mark.parametrize("saved", [True, False])
def test_nested_sums_change_places_when_the_other_inner_sum_is_known(saved):
    root = textbook.nested(saved=saved)
    ((_, p),) = row_correction(root)
    assert not differs(root, p, AWKWARD)
    assert "yz" not in p.nodes and p.nodes["d"].over == ("e",)
    assert {use.node for use in p.nodes["d"].args} == {"Y", "O" if saved else "o"}


def test_nested_sums_stay_when_nothing_else_is_known():
    s = Sketch({"q": "Q", "k": "K", "e": "E"}, acc="float32")
    x, y, z = (s.input(name, axes, "float32") for name, axes in (("X", "qk"), ("Y", "qe"), ("Z", "ke")))
    s.fact(s.input("O", "qe", "float32"), s.dot("o", y, z.renamed(k="q"), over="e"))
    assert not list(row_correction(s.build(D=s.dot("d", x, s.dot("yz", y, z, over="e"), over="k"))))


def test_a_chain_of_maps_becomes_one_kernel():
    assert kernels(apply(textbook.gemm(), fuse_maps)) == [("acc",), ("scaled", "biased", "summed", "activated")]


def test_maps_with_a_reduction_between_stay_apart():
    assert kernels(apply(textbook.softmax(), fuse_maps)) == [("m",), ("shifted", "e"), ("l",), ("p",)]


def test_an_epilogue_is_drawn_into_its_reduction_and_a_prologue_into_its_reader():
    assert kernels(apply(textbook.gemm("none"), fuse_epilogues)) == [("acc", "scaled")]
    p = apply(textbook.norm_product(), defer_division)
    assert ("squares",) in kernels(p)
    assert not list(fuse_prologues(p))
    assert ("unit", "acc") in kernels(apply(textbook.norm_product(), fuse_prologues))


def test_reductions_fuse_with_readers_and_siblings_with_each_other():
    s = Sketch({"m": "M", "n": "N", "k": "K"}, acc="float32")
    a, b = s.input("A", "mk", "float32"), s.input("B", "kn", "float32")
    p = s.build(Y=s.reduce("top", "max", s.dot("acc", a, b, over="k"), over="n"))
    assert kernels(apply(p, fuse)) == [("acc", "top")]
    assert {"total", "squares"} in [set(members) for members in kernels(apply(textbook.moments(), fuse_siblings))]
    assert not list(fuse_siblings(p))


def test_a_cloned_kernel_is_computed_in_every_reader_and_written_nowhere():
    p = apply(textbook.softmax(), fuse_maps)
    three_pass = apply(p, clone_producer)
    assert len(three_pass.kernels) == 3
    assert [len(k.members) for k in three_pass.kernels] == [1, 3, 3]
    assert {place[0] for place in three_pass.materialised} == {"m", "l", "p"}


def test_a_deep_clone_takes_producers_along_but_not_statistics():
    p = apply(textbook.attention(), merge_reductions, fuse_maps)
    choices = {site.choice for site, _ in clone_producer(p)}
    assert choices == {"shallow", "deep"}
    deep = next(q for site, q in clone_producer(p) if site.choice == "deep")
    assert {place[0] for place in deep.materialised} == {"m", "o"} | ({"p"} & {place[0] for place in deep.materialised})


def test_what_follows_a_split_reduction_goes_with_its_combine():
    p = apply(textbook.gemm(), fuse_maps, fuse_epilogues)
    by_choice = {site.choice: q for site, q in split_reduction(p)}
    assert set(by_choice) == {"second_kernel", "cluster"}  # atomics cannot have an epilogue
    assert kernels(by_choice["second_kernel"])[0] == ("acc_part",)
    assert kernels(by_choice["second_kernel"])[1][0] == "acc"
    assert by_choice["cluster"].kernels[0].annotations == (("combine", "s", "cluster"),)
    assert not list(split_reduction(by_choice["second_kernel"]))


def test_a_combine_rescales_what_scales_in_a_maximum():
    p = apply(textbook.softmax(), merge_reductions, split_reduction)
    total = p.nodes["m"].fields[1]
    assert total.body == ("mul", ("arg", 1), ("exp", ("shift", ("arg", 0), ("field", "m"))))


def test_a_step_that_does_not_apply_is_refused_in_one_line():
    with pytest.raises(KernsearchError, match=r"step 1, fuse_maps: does not apply here"):
        replay(textbook.softmax(), [Step("fuse_maps", Site(kernels=("0" * 16,)))])
    with pytest.raises(KernsearchError, match="step 1, unheard_of"):
        replay(textbook.softmax(), [Step("unheard_of", Site())])


def test_a_rule_has_one_name():
    with pytest.raises(ValueError, match="twice"):

        @rule(phase="fusion")
        def fuse_maps(p):
            yield from ()


def test_a_reduction_does_not_fuse_around_what_lies_between():
    s = Sketch({"m": "M", "k": "K"}, acc="float32")
    x = s.input("X", "mk", "float32")
    first = s.reduce("first", "sum", x, over="k")
    between = s.map("between", ("exp", first))
    p = s.build(Y=s.reduce("second", "sum", ("mul", x, ("mul", first, between)), over="k"))
    assert not list(fuse(p))
    assert not list(fuse_siblings(p))


def test_a_reader_is_no_sibling():
    s = Sketch({"m": "M", "k": "K"}, acc="float32")
    x = s.input("X", "mk", "float32")
    p = s.build(Y=s.reduce("second", "sum", ("mul", x, s.reduce("first", "sum", x, over="k")), over="k"))
    assert not list(fuse_siblings(p)) and list(fuse(p))


def test_of_epilogues_that_would_wait_for_each_other_only_some_are_drawn_in():
    s = Sketch({"m": "M", "k": "K"}, acc="float32")
    x = s.input("X", "mk", "float32")
    first = s.reduce("first", "sum", x, over="k")
    second = s.reduce("second", "sum", ("mul", x, first), over="k")
    inner = s.map("inner", ("add", first, second))
    p = s.build(Y=s.map("y", ("mul", first, inner)), Z=second)
    fused = apply(p, fuse_epilogues)
    assert fused.legal
    assert {frozenset(members) for members in kernels(fused)} == {
        frozenset({"first"}),
        frozenset({"second", "inner"}),
        frozenset({"y"}),
    }


def test_sites_tell_clones_apart():
    p = apply(textbook.attention(), merge_reductions, fuse_maps)
    cloned = next(q for site, q in clone_producer(p) if site.choice == "deep")
    assert len(set(cloned.keys.values())) < len(cloned.keys)
    sites = [site for site, _ in split_reduction(cloned)]
    assert len(set(sites)) == len(sites)


def test_a_maximum_read_along_another_axis_does_not_merge():
    s = Sketch({"q": "Q", "r": "Q", "k": "K"}, acc="float32")
    x = s.input("X", "qk", "float32")
    m = s.reduce("m", "max", x, over="k")
    turned = ("exp", ("shift", x.renamed(q="r"), m.renamed(q="r")))
    assert not list(merge_reductions(s.build(Y=s.reduce("l", "sum", turned, over="k"), M=m)))


def test_nested_sums_stay_when_the_outer_axis_is_in_both_factors():
    s = Sketch({"q": "Q", "k": "K", "e": "E"}, acc="float32")
    x, y, z = (s.input(name, axes, "float32") for name, axes in (("X", "qk"), ("Y", "ke"), ("Z", "ke")))
    o = s.dot("o", x, z, over="k")
    assert not list(row_correction(s.build(D=s.dot("d", x, s.dot("yz", y, z, over="e"), over="k"), O=o)))
