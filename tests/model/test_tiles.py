from dataclasses import replace

import explored
import numpy as np
import pytest
import textbook
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernsearch.claims import claims
from kernsearch.meaning import interpret
from kernsearch.meaning.chip import Counts
from kernsearch.meaning.frames import Queue, TileError
from kernsearch.meaning.tiles import FAULTS, run_tiles
from kernsearch.program import Program
from kernsearch.program.sketch import Sketch
from kernsearch.rules.split import split_reduction

CPU = [("gemm", name, "cpu") for name in ("cache_tiled", "register_tiled+map", "unpacked", "split_k+combine")]
LADDER = [
    ("gemm", name, "cuda")
    for name in (
        "register_tile", "mma+map", "pipeline", "wgmma_specialized", "wgmma_persistent", "split_k+combine",
        "split_k_atomic+map",
    )
]  # fmt: skip
ONLINE = [("softmax", name, "cuda") for name in ("online+map", "on_chip", "cluster_row", "split_row+combine+map")] + [
    ("attention", name, "cuda") for name in ("flash", "flash_split+combine")
]
FLASH = [("attention", name, "cpu") for name in ("flash", "flash_packed", "flash_slabs+combine")]
ALL = [*CPU, *FLASH, *LADDER, *ONLINE, ("moments", "row_moments", "cuda"), ("gemm", "contraction", "cpu")]
MOVING = [
    c for c in ALL if c[2] == "cuda" and c[1] in ("pipeline", "wgmma_specialized", "flash", "flash_split+combine")
]
SIZES = {"M": 5, "N": 7, "K": 11, "B": 2, "H": 2, "G": 2, "Q": 5, "D": 3, "E": 4, "OFF": 6}
LARGEST = {**dict.fromkeys("MNKBHGQDE", 9), "B": 2, "H": 2, "G": 3}

each = pytest.mark.parametrize("op, name, backend", ALL, ids=lambda x: x)
quick = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def case(op: str, name: str, backend: str):
    """A scheduled program, and its symbols."""
    variant = explored.derivation(op, backend).variant(name)
    return variant.program, variant.symbols


def config_of(symbols, size=4, **given):
    """Tiles that divide no size of SIZES."""
    chosen = {symbol: given.get(symbol, size) for symbol in symbols}
    return {**chosen, **{s: given.get(s, 3) for s in symbols if s in ("STAGES", "SPLIT", "WM", "WN", "TM", "TN")}}


def tiled(program, sizes, config, *, scale=1.0, seed=0, **options):
    """(result, textbook) of the one output."""
    root_names = {**sizes, **config}
    x = {name: scale * value for name, value in textbook.inputs(program, root_names, seed).items()}
    want = interpret(program, x, root_names, textbook.SCALARS)
    got = run_tiles(program, x, sizes, config, textbook.SCALARS, **options)
    ((name, value),) = want.items()
    return got[name], value


def same(got, want) -> bool:
    return np.allclose(got, want, rtol=1e-8, atol=1e-10)


@each
@quick
@given(data=st.data())
def test_tiles_compute_what_the_textbook_does(op, name, backend, data):
    program, symbols = case(op, name, backend)
    root = explored.derivation(op, backend).root
    sizes = {letter: data.draw(st.integers(1, most), label=letter) for letter, most in LARGEST.items()}
    sizes["OFF"] = data.draw(st.integers(-4, 8), label="OFF")
    config = {symbol: data.draw(st.integers(1, 6), label=symbol) for symbol in symbols}
    x = textbook.inputs(root, sizes, seed=data.draw(st.integers(0, 9)))
    want = interpret(root, x, sizes, textbook.SCALARS)
    got = run_tiles(program, x, sizes, config, textbook.SCALARS, seed=data.draw(st.integers(0, 9)))
    for out, value in want.items():
        assert same(got[out], value)
        assert not np.isnan(got[out]).any()


ONLINE += FLASH
RAGGED = [c for c in ALL if c[1] not in ("unpacked", "split_k_atomic+map", "contraction")]  # those cut no reduced axis


@pytest.mark.parametrize("op, name, backend", RAGGED, ids=lambda x: x)
def test_a_ragged_tile_without_its_guard_is_caught(op, name, backend):
    program, symbols = case(op, name, backend)
    config = config_of(symbols)
    assert same(*tiled(program, SIZES, config))
    assert not same(*tiled(program, SIZES, config, faults=frozenset({"no guard"})))


def test_a_missing_guard_goes_unseen_where_the_ragged_tile_is_skipped():
    program, symbols = case("attention", "flash", "cuda")
    sizes = {**SIZES, "K": 10, "Q": 3, "OFF": 0}  # no row sees the last tile
    broken = {"faults": frozenset({"no guard"})}
    assert same(*tiled(program, sizes, config_of(symbols), **broken))
    assert not same(*tiled(program, {**sizes, "OFF": 8}, config_of(symbols), **broken))


@pytest.mark.parametrize("op, name, backend", ONLINE, ids=lambda x: x)
def test_an_accumulator_that_is_not_rescaled_is_caught(op, name, backend):
    program, symbols = case(op, name, backend)
    config = config_of(symbols, SPLIT=2, BK=2, BN=2)
    assert same(*tiled(program, SIZES, config))
    assert not same(*tiled(program, SIZES, config, faults=frozenset({"no rescale"})))


@pytest.mark.parametrize("op, name, backend", [c for c in ONLINE if "split" in c[1] or "cluster" in c[1]])
def test_slabs_combined_without_rescaling_are_caught(op, name, backend):
    program, symbols = case(op, name, backend)
    config = config_of(symbols)
    assert same(*tiled(program, SIZES, config))
    assert not same(*tiled(program, SIZES, config, faults=frozenset({"no slab rescale"})))


@pytest.mark.parametrize("op, name, backend", MOVING, ids=lambda x: x)
@pytest.mark.parametrize("fault, words", [("no wait", "before its move completed"), ("early issue", "being read")])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_move_out_of_step_is_an_error(op, name, backend, fault, words, stages):
    program, symbols = case(op, name, backend)
    config = config_of(symbols, 2, STAGES=stages, BK=1, BN=1)
    assert same(*tiled(program, SIZES, config))
    with pytest.raises(TileError, match=words):
        tiled(program, SIZES, config, faults=frozenset({fault}))


def test_copies_run_ahead_by_the_free_slots_and_complete_in_order():
    arrived = []

    def copy(tile):
        return (1,), lambda: arrived.append(tile) or np.array([float(tile)])

    queue = Queue(3, True, 6, frozenset())
    assert queue.use(0, copy)[0] == 0
    assert (arrived, queue.next) == ([0], 3)
    assert queue.use(1, copy)[0] == 1
    assert (arrived, queue.next) == ([0, 1], 4)


@each
def test_every_element_is_written_once_in_any_order_of_blocks(op, name, backend):
    program, symbols = case(op, name, backend)
    config = config_of(symbols)
    first, want = tiled(program, SIZES, config, seed=1)
    assert same(first, want)
    counts = Counts()
    tiled(program, SIZES, config, counts=counts)
    for kernel in program.kernels:
        atomic = any(step[0] == "combine" and step[2] == "atomic" for step in kernel.annotations)
        times = config["SPLIT"] if atomic else 1
        for place in kernel.outputs:
            assert counts.writes[place] == times * program.elements(place, {**SIZES, **config})


def reads(program: Program, sizes, config) -> int:
    counts = Counts()
    tiled(program, sizes, config, counts=counts)
    return sum(counts.reads.values())


def with_steps(program: Program, keep) -> Program:
    """The program without the steps that `keep` refuses."""
    steps = {k: tuple(step for step in steps if keep(step)) for k, steps in program.annotations.items()}
    return replace(program, annotations=steps)


def test_a_kept_value_is_read_once():
    program, symbols = case("softmax", "on_chip", "cuda")
    config = config_of(symbols)
    elements = SIZES["M"] * SIZES["K"]
    assert reads(program, SIZES, config) == elements
    assert reads(with_steps(program, lambda step: step[0] != "keep"), SIZES, config) == 2 * elements


def test_a_moved_tile_serves_all_register_tiles_of_its_block():
    program, symbols = case("gemm", "register_tile+map+map+map+map", "cuda")
    config = config_of(symbols, BM=5, BN=7, TM=2, TN=2)
    moved = reads(program, SIZES, config)
    bare = reads(with_steps(program, lambda step: step[0] != "move"), SIZES, config)
    m, n, k = (SIZES[letter] for letter in "MNK")
    assert bare - moved == (m * k * 4 + k * n * 3) - (m * k + k * n)


def test_skipping_masked_tiles_reads_less_and_changes_nothing():
    program, symbols = case("attention", "flash", "cuda")
    sizes, config = {**SIZES, "OFF": 0}, config_of(symbols, 2)
    skipped, want = tiled(program, sizes, config)
    every, _ = tiled(program, sizes, config, faults=frozenset({"no skip"}))
    assert same(skipped, want)
    assert np.array_equal(skipped, every)
    assert reads(program, sizes, config) < reads(with_steps(program, lambda s: s[0] != "skip"), sizes, config)


def test_rows_that_are_masked_all_over_give_zero():
    program, symbols = case("attention", "flash", "cuda")
    got, want = tiled(program, {**SIZES, "OFF": -3}, config_of(symbols))
    assert same(got, want)
    assert (got[:, :, :, :3] == 0).all()


def test_large_scores_in_different_tiles_do_not_overflow():
    program, symbols = case("softmax", "online+map", "cuda")
    got, want = tiled(program, SIZES, config_of(symbols), scale=1000.0)
    assert same(got, want)
    assert np.allclose(got.sum(axis=1), 1)


def test_an_atomic_combine_adds_each_slab_to_memory():
    root = textbook.gemm("none")
    program = next(q for site, q in split_reduction(root) if site.choice == "atomic")
    got, want = tiled(program, {**SIZES, "K": 3}, {"SPLIT": 5})  # some slabs are empty
    assert same(got, want)


def test_an_unknown_fault_is_refused():
    program, symbols = case("softmax", "on_chip", "cuda")
    with pytest.raises(ValueError, match="want one of"):
        run_tiles(program, {}, SIZES, config_of(symbols), faults=frozenset({"typo"}))
    assert all(FAULTS.values())


def in_one_kernel(program: Program) -> Program:
    return program.moved(dict.fromkeys(program.members, 0))


def test_dependent_reductions_each_have_their_own_pass():
    steps = (("tile", ("m",), "block", "BM"), ("tile", ("k",), "serial", "BK"))
    program = in_one_kernel(textbook.softmax()).annotated(0, *steps)
    config = {"BM": 2, "BK": 3}
    assert same(*tiled(program, SIZES, config))
    elements = SIZES["M"] * SIZES["K"]
    assert reads(program, SIZES, config) == claims(program, SIZES, config).reads["global"] == 3 * elements


def test_independent_reductions_share_one_pass():
    s = Sketch({"m": "M", "k": "K"}, acc="float32")
    x = s.input("X", "mk", "float32")
    low = s.reduce("low", "max", ("neg", x), over="k")
    program = in_one_kernel(s.build(Y=s.map("y", ("add", low, s.reduce("sum", "sum", x, over="k")))))
    program = program.annotated(0, ("tile", ("k",), "serial", "BK"))
    assert same(*tiled(program, SIZES, {"BK": 4}))
    priced = claims(program, SIZES, {"BK": 4}).reads["global"]
    assert reads(program, SIZES, {"BK": 4}) == priced == SIZES["M"] * SIZES["K"]


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
@pytest.mark.parametrize("op", textbook.ROOTS)
def test_variants_of_every_op_run_tile_by_tile_and_cost_what_they_claim(op, backend):
    derivation = explored.derivation(op, backend)
    sizes = {**SIZES, "M": 4, "K": 5, "B": 1, "G": 1, "Q": 3}
    x = textbook.inputs(derivation.root, sizes)
    want = interpret(derivation.root, x, sizes, textbook.SCALARS)
    for variant in derivation.variants[:: 1 + len(derivation.variants) // 25]:
        config, counts = config_of(variant.symbols, 2), Counts()
        got = run_tiles(variant.program, x, sizes, config, textbook.SCALARS, counts=counts)
        cost = claims(variant, sizes, config)
        assert all(same(got[name], value) for name, value in want.items()), variant.name
        assert cost.reads["global"] == sum(counts.reads.values()), variant.name
        assert cost.writes["global"] == sum(counts.writes.values()), variant.name
