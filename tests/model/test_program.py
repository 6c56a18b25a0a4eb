import networkx as nx
import numpy as np
import pytest

from kernsearch.meaning import interpret
from kernsearch.program import Program, Site
from kernsearch.program import body as bodies
from kernsearch.program.sketch import Sketch
from kernsearch.program.value import Field, Node, Out, Use

SIZES = {"M": 3, "N": 5, "K": 7}


def product() -> Program:
    s = Sketch({"m": "M", "n": "N", "k": "K"}, acc="float32")
    a, b = s.input("A", "mk", "float32"), s.input("B", "kn", "float32")
    acc = s.dot("acc", a, b, over="k")
    d = s.map("D", ("mul", s.scalar("alpha"), acc))
    return s.build(D=d)


def test_a_program_means_what_numpy_says():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 7)), rng.normal(size=(7, 5))
    d = interpret(product(), {"A": a, "B": b}, SIZES, {"alpha": 2.0})["D"]
    assert np.allclose(d, 2 * a @ b, rtol=1e-13)


def test_keys_do_not_depend_on_names():
    s = Sketch({"m": "M", "n": "N", "k": "K"}, acc="float32")
    a, b = s.input("A", "mk", "float32"), s.input("B", "kn", "float32")
    other = s.build(D=s.map("other", ("mul", s.scalar("alpha"), s.dot("named", a, b, over="k"))))
    assert other.key == product().key
    assert sorted(other.keys.values()) == sorted(product().keys.values())


def test_keys_tell_the_order_of_arguments_apart():
    s = Sketch({"m": "M"}, acc="float32")
    a, b = s.input("A", "m", "float32"), s.input("B", "m", "float32")
    one, two = s.map("x", ("sub", a, b)), s.map("y", ("sub", b, a))
    p = s.build(X=one, Y=two)
    assert p.keys["x"] != p.keys["y"]


def test_one_edge_holds_all_uses_of_a_producer():
    s = Sketch({"m": "M", "n": "M", "k": "K"}, acc="float32")
    x = s.input("X", "mk", "float32")
    gram = s.dot("gram", x, x.renamed(m="n"), over="k")
    p = s.build(G=gram)
    assert p.graph.edges["X", "gram"]["uses"] == ((0, "X", ()), (1, "X", (("m", "n"),)))
    value = np.random.default_rng(1).normal(size=(3, 7))
    assert np.allclose(interpret(p, {"X": value}, SIZES)["G"], value @ value.T)


def test_a_dead_value_and_a_dead_field_go():
    s = Sketch({"m": "M", "k": "K"}, acc="float32")
    x = s.input("X", "mk", "float32")
    s.map("unused", ("exp", x))
    keep = s.reduce("keep", "max", x, over="k")
    p = s.build(Y=keep)
    assert set(p.nodes) == {"X", "keep"}
    two = p.nodes["keep"]
    fields = (*two.fields, Field("extra", ("m",), "sum", bodies.arg(0)))
    wider = Node("red", fields, "float32", two.args, two.over, kernel=0)
    assert len(p.edited({"keep": wider}).nodes["keep"].fields) == 1


def test_equal_values_become_one_inside_a_kernel_only():
    s = Sketch({"m": "M"}, acc="float32")
    x = s.input("X", "m", "float32")
    one, two = s.map("one", ("exp", x)), s.map("two", ("exp", x))
    p = s.build(Y=s.map("y", ("add", one, two)))
    assert len(p.nodes) == 4
    joined = p.moved({label: 0 for label in p.members})
    assert len(joined.nodes) == 3
    assert len(joined.kernels) == 1


def test_a_partition_with_a_cycle_of_kernels_is_not_legal():
    s = Sketch({"m": "M"}, acc="float32")
    x = s.input("X", "m", "float32")
    a = s.map("a", ("exp", x))
    b = s.map("b", ("neg", a))
    p = s.build(Y=s.map("c", ("add", a, b)))
    ends = {p.nodes["c"].kernel: p.nodes["a"].kernel}
    assert p.legal and not p.moved(ends).legal


def test_materialised_is_what_another_kernel_or_the_caller_reads():
    p = product()
    assert p.materialised == {("acc", "acc"), ("D", "D")}
    joined = p.moved({p.nodes["D"].kernel: p.nodes["acc"].kernel})
    assert joined.materialised == {("D", "D")}
    assert joined.kernels[0].reads == (("A", "A"), ("B", "B"))
    assert joined.traffic(SIZES) == 3 * 7 + 7 * 5 + 3 * 5


def test_kernels_come_in_launch_order_and_graphs_are_frozen():
    p = product()
    assert [k.members for k in p.kernels] == [("acc",), ("D",)]
    with pytest.raises(nx.NetworkXError):
        p.graph.add_node("x")


@pytest.mark.parametrize("count", [1, 2, 3, 13])
def test_slabs_may_be_ragged_or_empty(count):
    p = product()
    node = p.nodes["acc"]
    part = Node("red", (Field("acc", ("s", "m", "n"), "sum", node.fields[0].body),), "float32", node.args, ("k",),
                (("k", "s"),), kernel=0)  # fmt: skip
    total = Node("red", (Field("t", ("m", "n"), "sum", ("arg", 0)),), "float32", (Use("acc", "acc"),), ("s",), kernel=9)
    split = p.swapped({("acc", "acc"): ("t", "t")}, {"acc": part, "t": total}).edited({}, s="SPLIT")
    assert split.slabs == {"s": "k"}
    rng = np.random.default_rng(2)
    inputs = {"A": rng.normal(size=(3, 7)), "B": rng.normal(size=(7, 5))}
    want = interpret(p, inputs, SIZES, {"alpha": 1.0})["D"]
    got = interpret(split, inputs, {**SIZES, "SPLIT": count}, {"alpha": 1.0})["D"]
    assert np.allclose(got, want, rtol=1e-13)


def test_masked_rows_are_zero_and_not_nan():
    s = Sketch({"q": "Q", "k": "K"}, acc="float32")
    x = s.input("X", "qk", "float32")
    masked = s.map("masked", ("mask", x, "q", "k", "OFF"))
    m = s.reduce("m", "max", masked, over="k")
    e = s.map("e", ("exp", ("shift", masked, m)))
    total = s.reduce("l", "sum", e, over="k")
    p = s.build(Y=s.map("y", ("normalize", e, total)))
    y = interpret(p, {"X": np.ones((4, 5))}, {"Q": 4, "K": 5, "OFF": -2})["Y"]
    assert np.array_equal(y, [[0] * 5, [0] * 5, [1, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0]])


def test_a_running_value_is_seen_through_maps():
    x, m = bodies.arg(0), bodies.own("m")
    score = ("exp", ("mask", ("add", ("shift", x, m), bodies.arg(1)), "q", "k", "OFF"))
    assert bodies.dependence(x, "m") is bodies.FREE
    assert bodies.dependence(("sub", x, m), "m") is bodies.SHIFT
    assert bodies.dependence(score, "m") is bodies.SCALE
    assert bodies.dependence(("normalize", ("mul", score, bodies.arg(2)), bodies.arg(3)), "m") is bodies.SCALE
    for other in (("sub", m, x), ("mul", score, score), ("exp", ("mul", ("sub", x, m), x)), ("add", score, x), m):
        assert bodies.dependence(other, "m") is bodies.NONE


def test_a_site_survives_json():
    site = Site(("a",), ("b", "c"), ("k",), ("tile", ("m", "n"), "block", "MC"))
    assert Site.from_json(site.to_json()) == site


def test_outputs_keep_their_names():
    assert product().outs == (Out("D", "D", "D"),)


def test_a_kernel_does_not_read_what_it_computes_itself():
    s = Sketch({"m": "M"}, acc="float32")
    x = s.input("X", "m", "float32")
    here, there = s.map("here", ("exp", x)), s.map("there", ("exp", x))
    p = s.build(Y=s.map("y", ("add", here, there)), Z=there)
    joined = p.moved({p.nodes["y"].kernel: p.nodes["here"].kernel})
    assert set(joined.nodes) == {"X", "here", "there", "y"}
    assert {use.node for use in joined.nodes["y"].args} == {"here"}
