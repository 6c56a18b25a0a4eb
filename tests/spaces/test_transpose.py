"""`ks.transpose`, the op's model of banks, and its case."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from kernsearch.spaces.transpose.banks import PADDED, PLAIN, SWIZZLED, place, through_a_tile

import kernsearch as ks
from kernsearch import backends, registry
from kernsearch.cases.case import find
from kernsearch.cases.prepare import all_prepared
from kernsearch.errors import ArrayError, DtypeError
from kernsearch.model import banks, ceilings
from kernsearch.runtime import plans
from kernsearch.space import Access


@pytest.fixture(scope="module", autouse=True)
def own_home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNSEARCH_CACHE", str(tmp_path_factory.mktemp("home")))
        plans.forget()
        yield
    plans.forget()


def numbers(shape, dtype=np.float32):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def same(got, x) -> None:
    np.testing.assert_array_equal(np.ascontiguousarray(got).view(np.uint8), np.ascontiguousarray(x.T).view(np.uint8))


# -- the function


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (64, 128), (257, 131)])
def test_every_bit_is_moved(shape, dtype):
    x = numbers(shape, dtype)
    x.view(np.uint8).flat[:] = np.random.default_rng(1).integers(0, 256, x.nbytes)  # NaN of all kinds too
    same(ks.transpose(x), x)


def test_any_strides_are_taken():
    room = numbers((140, 160))
    for x in (room[::-1, ::-3], room[:, 1:50], np.asfortranarray(room), np.broadcast_to(room[:1], (50, 160))):
        same(ks.transpose(x), x)
    np.testing.assert_array_equal(ks.transpose(room.astype(">f4")), room.T)


def test_the_result_goes_where_it_is_wanted_also_over_the_input():
    x = numbers((60, 60))
    want = x.T.copy()
    inside = np.full((60, 200), np.nan, np.float32)
    assert ks.transpose(x, out=inside[:, 3:183:3]).base is inside
    np.testing.assert_array_equal(inside[:, 3:183:3], want)
    assert np.isnan(inside[:, 4:183:3]).all()
    ks.transpose(x, out=x)
    np.testing.assert_array_equal(x, want)
    assert ks.transpose(np.zeros((0, 5), np.float32)).shape == (5, 0)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda x: ks.transpose(x.astype(np.int32)), DtypeError, "x is int32: want float32, float64, bfloat16"),
        (lambda x: ks.transpose(x[0]), ArrayError, r"x has shape \(5,\): want two dimensions"),
        (lambda x: ks.transpose(x, out=x), ArrayError, r"out has shape \(4, 5\): want \(5, 4\)"),
        (lambda x: ks.transpose(x, out=x.T.astype(float)), DtypeError, "out is float64: want float32"),
        (lambda x: ks.transpose(x, out=np.broadcast_to(x[0, 0], (5, 4))), ArrayError, "out is read-only"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(call, error, words):
    with pytest.raises(error, match=words):
        call(numbers((4, 5)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_arrays_on_a_gpu(dtype):
    cupy = pytest.importorskip("cupy")
    for shape in ((1, 1), (300, 7), (1000, 777), (4096, 512)):
        x = cupy.asarray(numbers(shape, dtype))
        same(ks.transpose(x).get(), x.get())
        square = cupy.asarray(numbers((257, 257), dtype))
        want = square.T.copy()
        ks.transpose(square, out=square)
        assert (square == want).all()


def test_speed_is_told_in_bytes():
    op = registry.op("transpose")
    assert op.work(op.problem((10, 20), "bfloat16")) == (800.0, "B")
    assert registry.op("gemm").work(registry.problem("gemm", (2, 3, 4)))[1] == "FLOP"


# -- banks


def test_turns_are_those_of_the_fullest_bank():
    def of(step: int, itemsize: int = 4) -> int:
        return banks.turns(Access(tuple(lane * step for lane in range(32)), itemsize))

    assert [of(step) for step in (4, 8, 16, 128, 132, 0)] == [1, 2, 4, 32, 1, 1]
    assert (of(8, 8), of(128, 8), of(136, 8), of(2, 2), of(128, 2)) == (2, 32, 2, 1, 32)
    assert banks.turns(Access(tuple(lane * 4 for lane in range(32)), 4, memory=True)) == 1
    assert banks.turns(Access(tuple(lane * 4096 for lane in range(32)), 4, memory=True)) == 32


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("rows, columns", [(32, 32), (64, 32), (32, 64), (64, 64), (32, 128)])
def test_padding_and_swizzle_have_no_conflicts_and_plain_rows_many(rows, columns, itemsize):
    for layout in (PLAIN, PADDED, SWIZZLED):
        config = {"BM": rows, "BN": columns, "LAYOUT": layout}
        found = {n: banks.counted(a) for n, a in through_a_tile(config, {"ITEMSIZE": itemsize}).items()}
        assert found["write"].conflicts == 0
        assert found["read"].accesses == rows * columns // 32
        if layout == PLAIN:
            assert found["read"].turns >= 16 * found["read"].accesses
        else:
            assert found["read"].conflicts == 0
    places = {place(r, c, columns, itemsize, SWIZZLED) for r in range(rows) for c in range(columns)}
    assert places == set(range(0, rows * columns * itemsize, itemsize)), "a swizzle puts each element in its own place"


# -- the case


def test_arms_differ_in_the_layout_alone_and_carry_their_turns():
    backend = backends.get("cuda")
    device = backend.compile_only("sm_90a")
    case = find("padding-or-swizzle")
    arms = {a.arm.label: a for a in all_prepared(case.arms(device), case.op, backend, device, ceilings.guess(device))}
    for c in case.comparisons(device):
        before, after = (dict(arms[label].candidate.config) for label in (c.before, c.after))
        assert {letter for letter in before if before[letter] != after[letter]} == {"LAYOUT"}
        assert arms[c.before].problem == arms[c.after].problem
    first, second, third = (arms[label] for label in list(arms)[:3])
    assert first.told()["turns"]["read"]["turns"] == 32 * first.told()["turns"]["read"]["accesses"]
    assert second.told()["turns"]["read"]["conflicts"] == third.told()["turns"]["read"]["conflicts"] == 0
    assert first.prediction.seconds > 1.3 * second.prediction.seconds and first.prediction.bound == "shared"
