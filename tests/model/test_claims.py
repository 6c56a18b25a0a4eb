import explored
import pytest
import textbook
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernsearch.claims import claims, claims_of
from kernsearch.claims.costs import runs, trips
from kernsearch.meaning.chip import Counts
from kernsearch.meaning.loops import loops_of
from kernsearch.meaning.tiles import run_tiles
from kernsearch.program.sketch import Sketch

LETTERS = {"M": 9, "N": 9, "K": 9, "B": 2, "H": 2, "G": 2, "Q": 7, "D": 4, "E": 4}
quick = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
M, N, K = 64, 64, 32


def gemm(name: str, backend: str = "cuda"):
    return explored.derivation("gemm", backend).variant(name)


def plain_gemm():
    """One contraction, nothing else."""
    s = Sketch({"m": "M", "n": "N", "k": "K"}, acc="float32")
    return s.build(D=s.dot("D", s.input("A", "mk", "float32"), s.input("B", "kn", "float32"), over="k"))


SIZES = {"M": M, "N": N, "K": K}
TILES = (("tile", ("m",), "block", "BM"), ("tile", ("n",), "block", "BN"), ("tile", ("k",), "serial", "BK"))


def test_textbook_softmax_reads_five_times_and_writes_three_times_its_matrix():
    m, k = 48, 96
    cost = claims(textbook.softmax(), {"M": m, "K": k})
    assert cost.reads == {"global": 5 * m * k + 2 * m}
    assert cost.writes == {"global": 3 * m * k + 2 * m}
    assert cost.launches == 5
    assert cost.workspace_bytes == 4 * (2 * m * k + 2 * m)


def test_softmax_on_chip_reads_and_writes_its_matrix_once():
    m, k = 48, 96
    cost = claims(explored.derivation("softmax").variant("on_chip"), {"M": m, "K": k}, {"ROWS": 5, "BK": 32})
    assert (cost.reads["global"], cost.writes["global"]) == (m * k, m * k)
    assert (cost.launches, cost.workspace_bytes) == (1, 0)


def test_a_rule_claims_the_difference_of_two_programs():
    m, k = 48, 96
    derivation = explored.derivation("softmax")
    tiles = {"ROWS": 4, "BK": 32, "TM": 8}
    saved = claims(derivation.root, {"M": m, "K": k}) - claims(derivation.variant("on_chip"), {"M": m, "K": k}, tiles)
    assert saved.reads["global"] == 4 * m * k + 2 * m
    assert saved.launches == 4


@pytest.mark.parametrize("bm, bn", [(16, 32), (24, 48), (64, 64), (100, 7)])
def test_a_tiled_gemm_reads_each_operand_once_for_each_tile_of_the_other(bm, bn):
    program = plain_gemm().annotated(0, *TILES)
    cost = claims(program, SIZES, {"BM": bm, "BN": bn, "BK": 8})
    assert cost.reads["global"] == M * K * -(-N // bn) + K * N * -(-M // bm)
    assert cost.writes["global"] == M * N
    assert cost.flops == 2 * M * N * K
    assert cost.blocks == -(-M // bm) * -(-N // bn)
    assert cost.bytes == 4 * (cost.reads["global"] + cost.writes["global"])


def test_padded_work_counts_whole_tiles():
    program = plain_gemm().annotated(0, *TILES)
    cost = claims(program, SIZES, {"BM": 48, "BN": 64, "BK": 32})
    assert cost.flops == 2 * 64 * 64 * 32
    assert cost.padded_flops == 2 * 96 * 64 * 32


def test_register_tiles_read_moved_operands_from_the_chip():
    cost = claims(
        gemm("register_tile+map+map+map+map"), SIZES, {"BM": 32, "BN": 64, "BK": 8, "TM": 4, "TN": 8}
    ).kernels[0]
    assert cost.reads["global"] == M * K + K * N * 2
    assert cost.writes["chip"] == cost.reads["global"]
    assert cost.reads["chip"] == M * K * (N // 8) + K * N * (M // 4)
    assert cost.barriers == 2 * (K // 8) * cost.blocks


def test_asynchronous_moves_wait_once_a_tile():
    config = {"BM": 32, "BN": 64, "WM": 16, "WN": 32, "BK": 8, "STAGES": 3, "TM": 4}
    cost = claims(gemm("pipeline+map+map+map+map"), SIZES, config).kernels[0]
    assert cost.barriers == (K // 8) * cost.blocks


def test_atomic_slabs_write_the_result_once_each():
    cost = claims(gemm("split_k_atomic+map"), SIZES, {"SPLIT": 4, "TM": 4})
    assert cost.atomics == 4 * M * N
    assert cost.kernels[0].writes["global"] == 4 * M * N


def test_slabs_for_a_second_kernel_need_workspace():
    variant = gemm("split_k+combine")
    config = {s: 4 for s in variant.symbols}
    cost = claims(variant, SIZES, config)
    assert cost.workspace_bytes == 4 * 4 * M * N
    assert cost.launches == 2


def test_skipped_tiles_halve_the_work_of_causal_attention():
    derivation = explored.derivation("attention")
    variant = derivation.variant("flash")
    sizes = {"B": 1, "H": 2, "G": 1, "Q": 256, "K": 256, "D": 32, "E": 32}
    config = {s: 16 for s in variant.symbols} | {"STAGES": 2}
    causal, full = (claims(variant, {**sizes, "OFF": off}, config) for off in (0, 256))
    assert causal.flops / full.flops == pytest.approx((16 + 1) / (2 * 16), rel=0.01)


NAMES = [
    ("gemm", name, backend)
    for backend, names in (
        ("cpu", ("cache_tiled", "register_tiled+map", "unpacked", "split_k+combine", "contraction+map")),
        ("cuda", ("register_tile", "mma+map", "pipeline", "split_k+combine", "split_k_atomic+map", "naive")),
    )
    for name in names
] + [
    ("softmax", "online+map", "cuda"), ("softmax", "on_chip", "cuda"), ("softmax", "split_row+combine+map", "cuda"),
    ("softmax", "cluster_row", "cuda"), ("moments", "row_moments", "cuda"), ("product_softmax", "row_softmax", "cuda"),
    ("attention", "flash", "cuda"), ("attention", "flash_split+combine", "cuda"),
    ("norm_product", "naive+split_k+combine", "cuda"),
]  # fmt: skip


@pytest.mark.parametrize("op, name, backend", NAMES, ids=lambda x: x)
@quick
@given(data=st.data())
def test_claims_are_what_the_tile_interpreter_counts(op, name, backend, data):
    """Unless a tile of several axes falls into runs, or a skipped tile is not the slab's."""
    variant = explored.derivation(op, backend).variant(name)
    program = variant.program
    sizes = {letter: data.draw(st.integers(1, most), label=letter) for letter, most in LETTERS.items()}
    sizes |= {"G": 1, "OFF": 99 if "split" in name else data.draw(st.integers(-3, 9), label="OFF")}
    config = {symbol: data.draw(st.integers(1, 6), label=symbol) for symbol in variant.symbols}
    counts = Counts()
    run_tiles(program, textbook.inputs(program, sizes), sizes, config, textbook.SCALARS, counts=counts)
    cost = claims(program, sizes, config)
    assert cost.reads.get("global", 0) == sum(counts.reads.values())
    assert cost.writes["global"] == sum(counts.writes.values())


def test_the_walk_is_done_once_for_all_configs():
    variant = gemm("pipeline")
    assert claims_of(variant) is claims_of(variant.program)
    cost = claims_of(variant)
    config = {s: 4 for s in variant.symbols}
    assert cost(SIZES, config) == claims(variant, SIZES, config)
    assert cost(SIZES, {**config, "BM": 8}).reads["global"] < cost(SIZES, config).reads["global"]


def test_a_symbol_without_a_value_is_an_error():
    with pytest.raises(KeyError, match="BM"):
        claims(plain_gemm().annotated(0, *TILES), SIZES, {"BN": 4, "BK": 4})


@given(st.integers(0, 60), st.lists(st.integers(1, 20), max_size=3), st.integers(1, 8))
@quick
def test_trips_and_runs_count_the_pieces_of_a_cut_line(rows, tiles, row):
    total = rows * row

    def start(at):
        for tile in tiles:
            at %= tile
        return not at if tiles else False

    starts = {at for at in range(total) if at == 0 or start(at)}
    assert trips(total, tiles) == len(starts)
    assert runs(total, row, tiles) == len(starts | set(range(0, total, row)))


def test_the_loops_of_a_kernel_are_read_off_its_annotations():
    program = plain_gemm().annotated(0, *TILES)
    loops = loops_of(program, program.kernels[0])
    assert [t.symbol for t in loops.block] == ["BM", "BN"]
    assert [t.symbol for t in loops.serial] == ["BK"]
    assert loops.rounds == {"D": 0}
