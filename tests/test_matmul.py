"""`kernsearch.matmul` against NumPy, on what callers of np.matmul pass."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernsearch as ks
from kernsearch.errors import ArrayError, DtypeError, ProblemError
from kernsearch.runtime.strides import check_apart

DTYPES = ("float32", "float64")


@pytest.fixture(scope="module", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory):
    """Only what is shipped, and a folder for compiled objects that these tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNSEARCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def whole(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Small whole numbers, so that products are exact in any order."""
    return np.random.default_rng([seed, *shape]).integers(-4, 5, shape).astype(dtype)


def erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[float])(x)


ACTIVATIONS = {
    None: lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x / 2 * (1 + erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def close(got: np.ndarray, want: np.ndarray) -> bool:
    tolerance = {"float32": 2e-6, "float64": 1e-13}[str(got.dtype)]
    return bool(np.allclose(got, want, rtol=tolerance, atol=20 * tolerance))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 17, 5), (19, 1, 23), (3, 31, 1), (97, 65, 33), (128, 128, 300)])
def test_products_are_those_of_numpy(shape, dtype):
    m, n, k = shape
    a, b = whole(m, k, dtype=dtype), whole(k, n, dtype=dtype)
    got = ks.matmul(a, b)
    assert got.dtype == dtype
    assert np.array_equal(got, a @ b)
    assert np.array_equal(ks.matmul(a, b), got)  # the second call goes another way


@pytest.mark.parametrize(
    "shapes",
    [((5,), (5,)), ((5,), (5, 3)), ((4, 5), (5,)), ((2, 4, 5), (5,)), ((5,), (2, 5, 3)), ((2, 4, 5), (5, 3)),
     ((2, 4, 5), (2, 5, 3)), ((7, 1, 4, 5), (2, 5, 3)), ((4, 5), (3, 2, 5, 6)), ((1, 4, 5), (2, 5, 3)),
     ((2, 3, 1, 4, 5), (1, 2, 5, 3))],
)  # fmt: skip
def test_leading_dimensions_and_vectors_behave_as_in_numpy(shapes):
    a, b = (whole(*shape) for shape in shapes)
    want = np.matmul(a, b)
    for _ in range(2):
        got = ks.matmul(a, b)
        assert np.shape(got) == np.shape(want)
        assert np.array_equal(got, want)
    if want.shape:
        out = np.full(want.shape, np.nan, np.float32)
        assert ks.matmul(a, b, out=out) is out
        assert np.array_equal(out, want)


@pytest.mark.parametrize(
    "shapes",
    [((0, 5), (5, 3)), ((4, 5), (5, 0)), ((4, 0), (0, 3)), ((0, 0), (0, 0)), ((0,), (0,)), ((2, 0, 5), (5, 3)),
     ((0, 4, 5), (5, 3)), ((2, 4, 0), (2, 0, 3)), ((0,), (0, 3)), ((4, 0), (0,))],
)  # fmt: skip
def test_zero_sizes_are_fine(shapes):
    a, b = (whole(*shape) for shape in shapes)
    want = np.matmul(a, b)
    got = ks.matmul(a, b)
    assert np.shape(got) == np.shape(want)
    assert np.array_equal(got, want)


def test_without_an_inner_dimension_the_rest_is_still_computed():
    a, b, c, bias = whole(4, 0), whole(0, 3), whole(4, 3), whole(3)
    got = ks.matmul(a, b, bias=bias, c=c, beta=2, alpha=math.inf, activation="relu")
    assert np.array_equal(got, np.maximum(2 * c + bias, 0))
    assert np.array_equal(ks.matmul(a, b, c=c, beta=-1, out=c.copy()), -c)


def arrangements(array: np.ndarray) -> dict[str, np.ndarray]:
    """The same matrix in other places of memory."""
    m, n = array.shape
    shifted = np.zeros(array.nbytes + 3, np.uint8)[3:].view(array.dtype).reshape(m, n)
    shifted[...] = array
    odd = np.zeros((m, n, array.itemsize + 1), np.uint8)
    odd = np.ndarray(array.shape, array.dtype, odd, strides=odd.strides[:2])
    odd[...] = array
    padded = np.full((m + 2, n + 7), np.nan, array.dtype)[1:-1, 3:-4]
    padded[...] = array
    return {
        "C": np.ascontiguousarray(array),
        "Fortran": np.asfortranarray(array),
        "padded": padded,
        "transposed and padded": np.pad(array, 3).T[3:-3, 3:-3].T,
        "rows reversed": array[::-1].copy()[::-1],
        "columns reversed": array[:, ::-1].copy()[:, ::-1],
        "every other": np.repeat(np.repeat(array, 2, 0), 3, 1)[::2, ::3],
        "byte-misaligned": shifted,
        "odd strides": odd,
        "other byte order": array.astype(array.dtype.newbyteorder()),
    }


def test_inputs_may_have_any_strides_and_are_left_as_they_are():
    a, b = whole(21, 34), whole(34, 18)
    for (kind_a, x), (kind_b, y) in itertools.product(arrangements(a).items(), arrangements(b).items()):
        x.flags.writeable = y.flags.writeable = False
        assert np.array_equal(ks.matmul(x, y), a @ b), (kind_a, kind_b)
        assert np.array_equal(ks.matmul(x, y), a @ b), (kind_a, kind_b)
        assert np.array_equal(x, a) and np.array_equal(y, b)


def test_outputs_may_have_any_strides():
    a, b = whole(21, 34), whole(34, 18)
    for kind, out in arrangements(np.full((21, 18), 7, np.float32)).items():
        for _ in range(2):
            out[...] = np.nan
            assert ks.matmul(a, b, out=out) is out
            assert np.array_equal(out, a @ b), kind


def test_broadcast_inputs():
    a, b = np.broadcast_to(np.float32(3), (9, 8)), np.broadcast_to(whole(1, 5), (8, 5))
    assert np.array_equal(ks.matmul(a, b), a @ b)
    assert np.array_equal(ks.matmul(a, np.broadcast_to(whole(8, 1), (8, 5))), a @ np.broadcast_to(whole(8, 1), (8, 5)))


def test_the_strides_between_stacked_matrices_may_be_anything():
    a = whole(6, 4, 5, 2)[::2, ::-1, :, 0].transpose(0, 1, 2)
    b = np.moveaxis(whole(5, 3, 3), 2, 0)
    out = np.full((3, 4, 6), np.nan, np.float32)[:, :, ::2]
    assert np.array_equal(ks.matmul(a, b, out=out), a @ b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("bias", "residual"), [(False, False), (True, False), (False, True), (True, True)])
def test_the_epilogue_follows_the_definition(bias, residual, activation, dtype):
    a, b, c = (whole(*shape, dtype=dtype) / 4 for shape in ((23, 9), (9, 37), (23, 37)))
    v = whole(37, dtype=dtype)
    how = {"bias": v} if bias else {}
    how |= {"c": c, "beta": -1.5} if residual else {}
    want = 0.5 * (a.astype(float) @ b) + (v if bias else 0) - (1.5 * c if residual else 0)
    for _ in range(2):
        got = ks.matmul(a, b, activation=activation, alpha=0.5, **how)
        assert close(got, ACTIVATIONS[activation](want))


def test_scalars_are_those_of_the_call():
    a, b, c = whole(5, 6), whole(6, 7), whole(5, 7)
    for alpha, beta in [(1, 0), (2, 0), (2, 1), (-1, 3), (1, 1), (0, 1), (np.float32(0.5), np.float64(2))]:
        assert np.array_equal(ks.matmul(a, b, alpha=alpha, beta=beta, c=c), alpha * (a @ b) + beta * c)


def test_beta_of_zero_does_not_look_at_c():
    a, b = whole(5, 6), whole(6, 7)
    assert np.array_equal(ks.matmul(a, b, c=np.full((5, 7), np.nan, np.float32), beta=0), a @ b)


def test_c_is_broadcast():
    a, b = whole(3, 5, 6), whole(6, 7)
    for shape in [(), (7,), (5, 1), (1, 7), (3, 5, 7), (3, 1, 1)]:
        c = whole(*shape) if shape else np.array(2, np.float32)
        assert np.array_equal(ks.matmul(a, b, c=c, beta=1), a @ b + c)


def test_c_may_be_the_output():
    a, b, c = whole(65, 700), whole(700, 66), whole(65, 66)
    for arrange in arrangements(c.copy()).values():
        for _ in range(2):
            out = arrange
            out[...] = c
            assert ks.matmul(a, b, c=out, beta=2, bias=whole(66), out=out) is out
            assert np.array_equal(out, a @ b + 2 * c + whole(66))


def test_an_output_may_overlap_inputs():
    for which, shift in itertools.product("abc", (0, 1, 12)):
        room = np.zeros(144 + shift, np.float32)
        arrays = {name: whole(12, 12, seed=i) for i, name in enumerate("abc")}
        want = arrays["a"] @ arrays["b"] + arrays["c"]
        inside, out = room[:144].reshape(12, 12), room[shift:].reshape(12, 12)
        for _ in range(2):
            inside[...] = arrays[which]
            got = ks.matmul(**{**arrays, which: inside}, beta=1, out=out)
            assert np.array_equal(got, want), (which, shift)
    a = whole(4, 12, 12)
    want = a @ a
    assert np.array_equal(ks.matmul(a, a, out=a), want)
    b = whole(12, 12)
    want = b.T @ b
    assert np.array_equal(ks.matmul(b.T, b, out=b.T), want)


def test_nan_and_inf_spread_as_in_numpy():
    a, b = whole(9, 8), whole(8, 7)
    a[2, 3], a[4, 0], b[5, 6] = np.nan, np.inf, -np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.array_equal(ks.matmul(a, b), a @ b, equal_nan=True)
        for activation in ("relu", "gelu", "gelu_tanh", "silu"):
            assert np.isnan(ks.matmul(a, b, activation=activation)[2]).all()


def test_lists_are_arrays():
    assert np.array_equal(ks.matmul([[1.0, 2.0]], [[3.0], [4.0]]), [[11.0]])


@pytest.mark.parametrize(
    ("error", "match", "a", "b", "how"),
    [
        (DtypeError, "a is int64", np.ones((2, 2), int), np.ones((2, 2)), {}),
        (DtypeError, "a is complex128", np.ones((2, 2), complex), np.ones((2, 2)), {}),
        (DtypeError, "b is float16", np.ones((2, 2)), np.ones((2, 2), np.float16), {}),
        (DtypeError, "a is float64, b is float32", np.ones((2, 2)), np.ones((2, 2), np.float32), {}),
        (DtypeError, "a is bool", np.ones((2, 2), bool), np.ones((2, 2), bool), {}),
        (DtypeError, "a is object", [[None]], [[1.0]], {}),
        (DtypeError, "bias is float32", np.ones((2, 2)), np.ones((2, 2)), {"bias": np.ones(2, np.float32)}),
        (DtypeError, "out is float32", np.ones((2, 2)), np.ones((2, 2)), {"out": np.ones((2, 2), np.float32)}),
        (DtypeError, "out is list", np.ones((2, 2)), np.ones((2, 2)), {"out": [[0, 0], [0, 0]]}),
        (DtypeError, "c is int64", np.ones((2, 2)), np.ones((2, 2)), {"c": np.ones((2, 2), int), "beta": 1}),
        (ArrayError, "as many columns of a as rows of b", np.ones((2, 3)), np.ones((2, 3)), {}),
        (ArrayError, "do not broadcast", np.ones((2, 2, 2)), np.ones((3, 2, 2)), {}),
        (ArrayError, "no dimensions", np.ones(()), np.ones((2, 2)), {}),
        (ArrayError, "bias has shape", np.ones((2, 2)), np.ones((2, 2)), {"bias": np.ones(3)}),
        (ArrayError, "out has shape", np.ones((2, 2)), np.ones((2, 2)), {"out": np.ones((2, 3))}),
        (ArrayError, "c has shape", np.ones((2, 2)), np.ones((2, 2)), {"c": np.ones(3), "beta": 1}),
        (ArrayError, "beta = 1 without c", np.ones((2, 2)), np.ones((2, 2)), {"beta": 1}),
        (ProblemError, "activation 'sin'", np.ones((2, 2)), np.ones((2, 2)), {"activation": "sin"}),
        (ProblemError, "activation", np.ones((2, 2)), np.ones((2, 2)), {"activation": ["relu"]}),
        (ProblemError, "alpha 'x'", np.ones((2, 2)), np.ones((2, 2)), {"alpha": "x"}),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(error, match, a, b, how):
    with pytest.raises(error, match=match) as told:
        ks.matmul(a, b, **how)
    assert "\n" not in str(told.value)


def test_the_errors_are_of_numpys_kinds():
    with pytest.raises(TypeError):
        ks.matmul(np.ones((2, 2), int), np.ones((2, 2), int))
    with pytest.raises(ValueError):
        ks.matmul(np.ones((2, 3)), np.ones((2, 3)))


def test_a_read_only_output_is_refused_each_time():
    a = whole(3, 3)
    out = np.empty((3, 3), np.float32)
    ks.matmul(a, a, out=out)
    out.flags.writeable = False
    before = out.copy()
    for _ in range(2):
        with pytest.raises(ArrayError, match="read-only"):
            ks.matmul(a, a, out=out)
    assert np.array_equal(out, before)


OVERLAPPING = {
    "one row for all": lambda a: np.lib.stride_tricks.as_strided(a, (3, 3), (0, 4)),
    "one column for all": lambda a: np.lib.stride_tricks.as_strided(a, (3, 3), (4, 0)),
    "windows": lambda a: np.lib.stride_tricks.as_strided(a, (3, 3), (4, 4)),
    "rows that share an end": lambda a: np.lib.stride_tricks.as_strided(a, (3, 3), (8, 4)),
    "half an element": lambda a: np.lib.stride_tricks.as_strided(a, (3, 3), (10, 4)),
}


@pytest.mark.parametrize("kind", OVERLAPPING)
def test_an_output_that_visits_an_element_twice_is_refused_each_time(kind):
    a = whole(3, 3)
    out = OVERLAPPING[kind](np.zeros(32, np.float32))
    calls = {
        "matmul": lambda: ks.matmul(a, a, out=out),
        "plan": lambda: ks.load("gemm", shape=(3, 3, 3))(a, a, out=out),
        "softmax": lambda: ks.softmax(a, out=out),
        "transpose": lambda: ks.transpose(a, out=out),
        "attention": lambda: ks.attention(*[a[None, None]] * 3, out=out[None, None]),
    }
    for call in (*calls.values(), *calls.values()):
        with pytest.raises(ArrayError, match="visits an element twice") as told:
            call()
        assert "\n" not in str(told.value)
    assert not out.any()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9)), min_size=1, max_size=3), st.integers(1, 4))
def test_exactly_those_outputs_are_refused_whose_elements_share_memory(dims, size):
    shape, strides = zip(*dims, strict=True)
    taken = [sum(i * s for i, s in zip(at, strides, strict=True)) + byte for at in np.ndindex(shape)
             for byte in range(size)]  # fmt: skip
    try:
        check_apart("out", shape, strides, size)
    except ArrayError:
        assert len(set(taken)) < len(taken)
    else:
        assert len(set(taken)) == len(taken)


def test_a_remembered_call_looks_at_each_address_anew():
    a, b = whole(6, 8), whole(8, 4)
    room = np.zeros(64 * 4 + 1, np.uint8)
    for shift in (0, 1, 0, 1):
        x = room[shift : shift + a.nbytes].view(np.float32).reshape(a.shape)
        x[...] = a
        out = np.zeros(6 * 4 * 4 + 1, np.uint8)[shift : shift + 96].view(np.float32).reshape(6, 4)
        assert np.array_equal(ks.matmul(x, b, out=out), a @ b)


def test_a_remembered_call_still_misses_what_beta_scales():
    a, b = whole(6, 8), whole(8, 4)
    for _ in range(2):
        ks.matmul(a, b)
        with pytest.raises(ArrayError, match="without c"):
            ks.matmul(a, b, beta=2.0)


def test_many_threads_call_at_once():
    wrong, start = [], threading.Barrier(6)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        start.wait()
        for _ in range(60):
            m, n, k = rng.integers(1, 70, 3)
            a, b = whole(m, k, seed=seed), whole(k, n, seed=seed)
            if not np.array_equal(ks.matmul(a, b), a @ b):
                wrong.append((m, n, k))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_script_without_a_main_guard_may_use_it_in_a_pool():
    code = (
        "import multiprocessing, numpy as np, kernsearch as ks\n"
        "def work(n):\n"
        "    a = np.full((n, n), 2, 'f')\n"
        "    return float(ks.matmul(a, a).sum()) == float((a @ a).sum())\n"
        "work(33)\n"
        "with multiprocessing.get_context('fork').Pool(3) as pool:\n"
        "    print(all(pool.map(work, range(1, 40))))\n"
    )
    told = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False, timeout=120)
    assert (told.returncode, told.stdout.strip()) == (0, "True"), told.stderr


def test_the_callers_floating_point_mode_does_not_matter_to_subnormals():
    a = np.full((4, 4), 1e-30, np.float32)
    b = np.full((4, 4), 1e-12, np.float32)
    assert np.array_equal(ks.matmul(a, b) > 0, np.ones((4, 4), bool))


@pytest.mark.parametrize("bad", ["2", None, [1, 2], 1j, 10**400], ids=repr)
def test_a_scalar_that_is_no_number_is_refused_and_leaves_nothing_behind(bad: object) -> None:
    a, b, c = whole(3, 4), whole(4, 5), whole(3, 5)
    for _ in range(2):  # the second time by the short way
        np.testing.assert_array_equal(ks.matmul(a, b, c=c, beta=1), a @ b + c)
        with pytest.raises(ProblemError, match=r"beta .*: want a real number"):
            ks.matmul(a, b, c=c, alpha=5, beta=bad)  # type: ignore[arg-type]
        with pytest.raises(ProblemError, match=r"alpha .*: want a real number"):
            ks.matmul(a, b, alpha=bad)  # type: ignore[arg-type]


def test_the_sign_of_a_zero_scalar_counts() -> None:
    a, b = np.ones((3, 4), "f4"), np.ones((4, 5), "f4")
    for alpha in (0.0, -0.0, 0.0):
        signs = np.signbit(ks.matmul(a, b, alpha=alpha))
        assert (signs == (str(alpha) == "-0.0")).all()


def test_a_list_is_not_mistaken_for_nothing_on_a_remembered_call() -> None:
    a, b = whole(5, 4, dtype="float64"), whole(4, 3, dtype="float64")
    c = whole(5, 3, dtype="float64")
    for _ in range(2):
        ks.matmul(a, b, c=c, beta=1.0)
    assert np.array_equal(ks.matmul(a, b, c=c, beta=1.0, bias=[1.0, 2.0, 3.0]), a @ b + c + [1, 2, 3])
