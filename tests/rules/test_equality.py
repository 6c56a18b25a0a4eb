import numpy as np
import pytest
import textbook
from explored import AWKWARD, derivation, differs
from hypothesis import given, settings
from hypothesis import strategies as st

from kernsearch.meaning import interpret
from kernsearch.program import Program
from kernsearch.program import body as bodies
from kernsearch.program.value import Field, Node
from kernsearch.rules import algebra, split
from kernsearch.rules.split import split_reduction

EXTENTS = st.sampled_from([1, 2, 3, 13])


@st.composite
def awkward_sizes(draw) -> dict[str, int]:
    """Extents of 1, primes, and more slabs than elements; masks that hide whole rows."""
    sizes = {letter: draw(EXTENTS) for letter in "MNKQDE"}
    sizes |= {letter: draw(st.sampled_from([1, 2])) for letter in "BHG"}
    return {**sizes, "SPLIT": draw(st.sampled_from([1, 2, 5, 17])), "OFF": draw(st.sampled_from([-3, 0, 1, 20]))}


@pytest.mark.parametrize("op", [*textbook.ROOTS])
@pytest.mark.parametrize("backend", ["cuda", "cpu"])
def test_every_derived_program_equals_the_textbook(op, backend):
    derived = derivation(op, backend)

    @settings(max_examples=12, deadline=None, derandomize=True, database=None)
    @given(awkward_sizes(), st.integers(0, 99))
    def check(sizes, seed):
        for program in derived.programs():
            assert not differs(derived.root, program, sizes, seed), program.key

    check()


@pytest.mark.parametrize("op", ["softmax", "product_softmax", "norm_product", "moments", "nested", "attention"])
def test_the_textbook_is_what_numpy_says(op):
    root = textbook.ROOTS[op]()
    for off in (1, -3):
        sizes = {**AWKWARD, "OFF": off}
        x = textbook.inputs(root, sizes)
        (got,) = interpret(root, x, sizes, textbook.SCALARS).values()
        assert np.allclose(got, textbook.by_hand(op, x, sizes), rtol=1e-9)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("epilogue", ["none", "bias", "residual", "bias,relu,residual", "silu", "gelu_tanh"])
def test_gemm_means_its_definition_in_every_layout(layout, epilogue):
    root = textbook.gemm(epilogue, layout)
    x = textbook.inputs(root, AWKWARD)
    a, b = (x[n].T if t == "t" else x[n] for n, t in zip("AB", layout, strict=True))
    want = textbook.SCALARS["alpha"] * a @ b
    want = want + x["bias"] if "bias" in epilogue else want
    want = want + textbook.SCALARS["beta"] * x["C"] if "residual" in epilogue else want
    want = np.maximum(want, 0) if "relu" in epilogue else want
    want = want / (1 + np.exp(-want)) if "silu" in epilogue else want
    if "gelu_tanh" in epilogue:
        want = 0.5 * want * (1 + np.tanh(np.sqrt(2 / np.pi) * (want + 0.044715 * want**3)))
    assert np.allclose(interpret(root, x, AWKWARD, textbook.SCALARS)["D"], want)


def test_a_weight_of_zero_does_not_look_at_its_operand():
    root = textbook.gemm("residual")
    x = textbook.inputs(root, AWKWARD)
    x["C"][:] = np.nan
    assert np.isfinite(interpret(root, x, AWKWARD, {"alpha": 1.0, "beta": 0.0})["D"]).all()


def test_rows_that_are_masked_all_over_are_zero_in_every_attention_program():
    derived = derivation("attention")
    sizes = {**AWKWARD, "OFF": -3}
    x = textbook.inputs(derived.root, sizes)
    for program in derived.programs():
        o = interpret(program, x, sizes, textbook.SCALARS)["O"]
        assert not np.isnan(o).any()
        assert (o[..., :3, :] == 0).all() and (o[..., 3:, :] != 0).all()


# Planted twins: rules that are wrong in one way each. The check above must see every one of them.


def _ragged_dropped(p: Program):
    for site, split_program in split_reduction(p):
        yield split_program.edited({}, None, **dict.fromkeys(site.axes, f"{p.extents[site.axes[0]]} // SPLIT * SPLIT"))


def _mask_turned(p: Program):
    def turn(body):
        if body[0] == "mask":
            return ("mask", turn(body[1]), body[3], body[2], body[4])
        return body if bodies.is_leaf(body) else (body[0], *map(turn, body[1:]))

    for name, node in p.nodes.items():
        if node.op == "map" and bodies.mask_axes(node.fields[0].body):
            field = node.fields[0]
            yield p.edited({name: Node("map", (Field(field.name, field.axes, None, turn(field.body)),), node.dtype,
                                       node.args, kernel=node.kernel)})  # fmt: skip


def _epilogue_before_the_sum_ends(p: Program):
    for name, node in p.nodes.items():
        producer = p.nodes[node.args[0].node] if node.op == "map" and len(node.args) == 1 else None
        if producer and producer.op == "red" and len(producer.fields) == 1:
            old = producer.fields[0]
            body = bodies.replace(node.fields[0].body, lambda leaf, b=old.body: b if leaf[0] == "arg" else leaf)
            early = Node("red", (Field(name, old.axes, old.monoid, body),), node.dtype, producer.args, producer.over,
                         kernel=node.kernel)  # fmt: skip
            yield p.edited({name: early})


def _reached(root: Program, rewrite):
    return [q for p in (root,) for q in rewrite(p)]


@pytest.mark.parametrize(
    ("op", "twin"),
    [
        ("gemm", _ragged_dropped),
        ("attention", _mask_turned),
        ("norm_product", _epilogue_before_the_sum_ends),
        ("moments", _epilogue_before_the_sum_ends),
    ],
)
def test_a_planted_wrong_rule_is_caught(op, twin):
    root = textbook.ROOTS[op]()
    wrong = _reached(root, twin)
    assert wrong
    assert any(differs(root, program, AWKWARD) for program in wrong)


def _online_and_split(root: Program) -> list[Program]:
    programs = [root]
    for rule in (algebra.merge_reductions, algebra.defer_division, algebra.merge_reductions):
        programs += [q for p in programs for _, q in rule(p)]
    return [q for p in programs for _, q in split_reduction(p)]


@pytest.mark.parametrize("op", ["softmax", "attention"])
def test_a_combine_that_does_not_rescale_is_caught(op, monkeypatch):
    root = textbook.ROOTS[op]()
    assert not any(differs(root, program, AWKWARD) for program in _online_and_split(root))
    monkeypatch.setattr(split, "_combined", lambda node, field: bodies.arg(node.index(field.name)))
    assert any(differs(root, program, AWKWARD) for program in _online_and_split(root))


def test_a_merge_that_does_not_ask_how_the_body_depends_is_caught(monkeypatch):
    root = textbook.attention()
    true_dependence = bodies.dependence

    def careless(body, running):
        kind = true_dependence(body, running)
        if kind is not bodies.NONE:
            return kind
        return bodies.FREE if running == "l" else bodies.SCALE  # a division by l passes for free

    monkeypatch.setattr(algebra.bodies, "dependence", careless)
    merged = [q for p in (q for _, q in algebra.merge_reductions(root)) for _, q in algebra.merge_reductions(p)]
    monkeypatch.undo()
    wrong = [q for p in merged for _, q in split_reduction(p)]
    assert any(differs(root, program, AWKWARD) for program in wrong)
