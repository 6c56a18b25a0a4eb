import pytest

from kernsearch.program import Program
from kernsearch.program.body import arg, own
from kernsearch.program.sketch import Sketch
from kernsearch.rules import algebra, fusion
from kernsearch.rules.schedule import Trie, in_order, symbols
from kernsearch.rules.split import split_reduction
from kernsearch.space import Constraint
from kernsearch.template import Matched, Template, anything, as_, comb, dot, hole, red


def template(*roots, **options) -> Template:
    return Template(name="t", backend="cpu", roots=roots, **options)


def product(epilogue: bool = True, batch: str = "") -> Program:
    s = Sketch({"b": "B", "m": "M", "n": "N", "k": "K"}, acc="float32")
    a, b = s.input("A", batch + "mk", "float32"), s.input("B", batch + "kn", "float32")
    acc = s.dot("acc", a, b, over="k")
    if not epilogue:
        return s.build(D=acc)
    bias = s.input("bias", "n", "float32")
    p = s.build(D=s.map("D", ("relu", ("add", ("mul", s.scalar("alpha"), acc), bias))))
    return p.moved({label: 0 for label in p.members})


def only(p: Program, t: Template) -> Matched | None:
    (kernel,) = p.kernels
    return t.match(p, kernel)


def test_a_contraction_binds_rows_columns_and_depth():
    matched = only(product(batch="b"), template(hole("D", dot("A", "B"))))
    assert matched is not None
    assert matched.found.groups == {"M": ("m",), "N": ("n",), "K": ("k",), "B": ("b",)}


def test_a_binding_says_how_the_holes_are_filled():
    binding = only(product(), template(hole("D", dot("A", "B")))).binding()
    assert binding.operands == {"A": ("load", "A", ("m", "k")), "B": ("load", "B", ("k", "n"))}
    (root,) = binding.roots
    scaled = ("mul", ("scalar", "alpha"), ("acc", "acc"))
    assert root.array == "D" and root.axes == ("m", "n")
    assert root.value == ("relu", ("add", scaled, ("load", "bias", ("n",))))
    assert binding.scalars == ("alpha",)
    assert [(a.name, a.axes) for a in binding.arrays] == [
        ("A", ("m", "k")),
        ("B", ("k", "n")),
        ("bias", ("n",)),
        ("D", ("m", "n")),
    ]
    assert binding.extents == {"m": "M", "n": "N", "k": "K"}
    assert (binding.acc, binding.fields, binding.slabs) == ("float32", (), {})


def test_a_transposed_operand_is_an_order_of_axes():
    s = Sketch({"m": "M", "n": "N", "k": "K"}, acc="float32")
    a, b = s.input("A", "km", "float32"), s.input("B", "nk", "float32")
    matched = only(s.build(D=s.dot("acc", a, b, over="k")), template(hole("D", dot("A", "B"))))
    assert matched.binding().operands == {"A": ("load", "A", ("k", "m")), "B": ("load", "B", ("n", "k"))}


def test_one_array_may_fill_two_operands_along_other_axes():
    s = Sketch({"m": "M", "n": "M", "k": "K"}, acc="float32")
    x = s.input("X", "mk", "float32")
    p = s.build(D=s.dot("acc", s.map("e", ("exp", x)), x.renamed(m="n"), over="k"))
    matched = only(p.moved({label: 0 for label in p.members}), template(hole("D", dot("A", "B"))))
    operands = matched.binding().operands
    assert operands == {"A": ("exp", ("load", "X", ("m", "k"))), "B": ("load", "X", ("n", "k"))}


def test_operands_commute_when_their_order_does_not_fit():
    prologue = dot(hole("A"), anything())
    s = Sketch({"m": "M", "n": "N", "k": "K"}, acc="float32")
    a, b = s.input("A", "mk", "float32"), s.input("B", "kn", "float32")
    p = s.build(D=s.dot("acc", a, s.map("e", ("exp", b)), over="k"))
    matched = only(p.moved({label: 0 for label in p.members}), template(hole("D", prologue)))
    assert matched.binding().operands == {"A": ("exp", ("load", "B", ("k", "n")))}
    assert matched.found.groups["M"] == ("n",)


@pytest.mark.parametrize(
    ("groups", "batch", "fits"),
    [
        ("", "b", True),
        ("M1 N1 K1", "", True),
        ("M1 N1 K1", "b", False),
        ("M+ N+ K+ B*", "b", True),
        ("M+ N+ K+ B*", "", True),
        ("M+ N+ K+ B+", "", False),
    ],
)
def test_a_template_says_how_many_axes_its_groups_have(groups, batch, fits):
    assert bool(only(product(False, batch), template(hole("D", dot("A", "B")), groups=groups))) == fits


def test_a_kernel_is_matched_whole_or_not_at_all():
    p = product()
    assert only(p, template(dot("A", "B"))) is None  # the epilogue would be left over
    assert only(p, template(hole("D", dot("A", "B")), hole("E", dot("A", "B")))) is None  # a root would be left over
    assert template(hole("D", dot("A", "B")), hole("E", dot("A", "B"))).nearly(p, p.kernels[0])  # but it is on its way


def test_a_dtype_that_a_template_does_not_take_is_no_match():
    assert only(product(), template(hole("D", dot("A", "B")), dtypes=("float64",))) is None


def test_an_epilogue_may_not_use_the_reduced_axis_unless_the_template_says_so():
    s = Sketch({"m": "M", "k": "K"}, acc="float32")
    x = s.input("X", "mk", "float32")
    p = s.build(Y=s.map("y", ("sub", x, s.reduce("m", "max", x, over="k"))))
    p = p.moved({label: 0 for label in p.members})
    assert only(p, template(hole("Y", red(None)))) is None
    matched = only(p, template(hole("Y", red({"m": ("max", arg(0))}, "X"), groups="MK")))
    assert matched.binding().roots[0].value == ("sub", ("load", "X", ("m", "k")), ("acc", "m"))


def test_fields_match_by_body_and_not_by_name():
    s = Sketch({"m": "M", "k": "K"}, acc="float32")
    x = s.input("X", "mk", "float32")
    top = s.reduce("top", "max", x, over="k")
    root = s.build(T=top, S=s.reduce("sum", "sum", ("exp", ("shift", x, top)), over="k"))
    ((_, p),) = algebra.merge_reductions(root)
    statistics = {"m": ("max", arg(0)), "l": ("sum", ("exp", ("shift", arg(0), own("m"))))}
    matched = only(p, template(hole("M_", red(statistics, "X")), hole("L_", red(statistics, "X"))))
    assert {r.array: r.value for r in matched.binding().roots} == {"T": ("acc", "m"), "S": ("acc", "l")}
    assert [f.name for f in matched.binding().fields] == ["m", "l"]
    plain = {"m": ("max", arg(0)), "l": ("sum", arg(0))}
    assert only(p, template(hole("M_", red(plain, "X")), hole("L_", red(plain, "X")))) is None


def test_one_root_may_stand_for_any_number_of_outputs():
    s = Sketch({"m": "M"}, acc="float32")
    x = s.input("X", "m", "float32")
    p = s.build(Y=s.map("y", ("exp", x)), Z=s.map("z", ("neg", x)))
    p = p.moved({label: 0 for label in p.members})
    assert only(p, template(hole("Y", groups="M"))) is None
    matched = only(p, template(hole("Y", groups="M"), many=True))
    assert [root.array for root in matched.binding().roots] == ["Y", "Z"]


def test_a_slab_and_its_combine_match_their_own_patterns_only():
    p = next(q for site, q in split_reduction(product()) if site.choice == "second_kernel")
    first, second = p.kernels
    whole, part = template(hole("D", dot("A", "B"))), template(hole("D", dot("A", "B", slab=True)))
    assert part.symbols == ("SPLIT",)
    assert whole.match(p, first) is None
    binding = part.match(p, first).binding()
    assert binding.slabs == {"k": "s"} and binding.extents["s"] == "SPLIT"
    assert binding.roots[0].axes == ("s", "m", "n")
    combined = template(hole("Y", comb())).match(p, second)
    assert combined.symbols == ("SPLIT",)
    assert combined.binding().fields[0].body == ("load", "acc_part", ("s", "m", "n"))
    assert template(hole("Y", red(None))).match(p, second) is None


def test_as_names_a_value_inside_a_pattern():
    matched = only(product(), template(hole("D", as_("whole", dot("A", "B")))))
    assert matched.found.places["whole"].node == "acc"


def test_annotations_speak_of_the_programs_axes_and_values():
    t = template(
        hole("D", dot("A", "B")),
        ann=(
            ("move", "A", "pack"),
            ("tile", ("M", "N"), "block", "MC"),
            ("tile", ("B",), "block", "ROWS"),
            ("keep", "acc", "registers"),
        ),
        assumes=("B.N == 1",),
    )
    p = product()
    matched = only(p, t)
    assert matched.annotations == (
        ("tile", ("m", "n"), "block", "MC"),
        ("keep", p.keys["acc"], "registers"),
        ("move", p.keys["A"], "pack"),
    )
    assert matched.symbols == ("MC",)
    assert matched.assumes == ("B.n == 1",)


def test_schedules_of_a_kernel_share_their_beginnings():
    block, move, keep = ("tile", ("m",), "block", "BM"), ("move", "a", "async", "STAGES"), ("keep", "x", "registers")
    trie = Trie.of({"one": (block,), "two": (move, block), "three": (move, keep, block)})
    assert trie.states() == 5
    assert dict((name, path) for path, name in trie.leaves())["three"] == (block, keep, move)
    assert in_order((move, keep, block)) == (block, keep, move)
    assert symbols((block, keep, move)) == ("BM", "STAGES")


def test_epilogues_with_a_program_between_are_not_drawn_in_at_once():
    s = Sketch({"m": "M", "k": "K"}, acc="float32")
    x = s.input("X", "mk", "float32")
    norm = s.map("norm", ("sqrt", s.reduce("squares", "sum", ("mul", x, x), over="k")))
    p = s.build(Y=s.map("y", ("div", x, norm)))
    ((_, first),) = fusion.fuse_epilogues(p)
    assert [k.members for k in first.kernels] == [("squares", "norm"), ("y",)]
    ((_, second),) = fusion.fuse_epilogues(first)
    assert [k.members for k in second.kernels] == [("squares", "norm", "y")]


def row_sums(*outs: str) -> Program:
    """A sum over k of each row, and its square."""
    s = Sketch({"m": "M", "k": "K"}, acc="float32")
    total = s.reduce("total", "sum", s.input("X", "mk", "float32"), over="k")
    square = s.map("square", ("mul", total, total))
    found = {"A": total, "B": square}
    p = s.build(**{name: found[name] for name in outs})
    return p.moved(dict.fromkeys(p.members, 0))


def test_the_last_roots_may_be_missing_where_they_are_optional():
    anchor = red({"a": ("sum", arg(0))}, "X")
    both = template(hole("A", anchor), hole("B", anchor), optional=1)
    assert len(only(row_sums("A", "B"), both).outputs) == 2
    assert len(only(row_sums("B"), both).outputs) == 1
    assert only(row_sums("B"), template(hole("A", anchor), hole("B", anchor))) is None


def test_constraints_see_the_sizes_of_the_groups_of_their_kernel():
    seen = []

    def holds(config, device, sizes):
        seen.append(dict(sizes))
        return True

    s = Sketch({"b": "B", "h": "H", "q": "Q", "k": "K", "d": "D"}, acc="float32")
    q, k = s.input("Q", "bhqd", "float32"), s.input("K", "bhkd", "float32")
    rule = Constraint("", holds)
    matched = only(s.build(S=s.dot("s", q, k, over="d")), template(hole("D", dot("A", "B")), constraints=(rule,)))
    matched.constraints[0].holds({}, None, {"B": 2, "H": 3, "Q": 5, "K": 7, "D": 11, "THREADS": 2})
    assert seen == [{"B": 6, "H": 3, "Q": 5, "K": 11, "D": 11, "THREADS": 2, "M": 5, "N": 7}]
    assert only(product(), template(hole("D", dot("A", "B")), constraints=(rule,))).constraints == (rule,)
    rows = only(row_sums("A"), template(hole("A", red({"a": ("sum", arg(0))}, "X"))))
    assert rows.sizes({"M": 5, "K": 9})["N"] == 9
