"""What correct means for gemm: the error bound, the inputs of the gates, awkward shapes, and two independent checks.

All of it also serves products with leading dimensions (bmm): shapes are (..., M, N, K), each batch a gemm of its own.

Bound, elementwise, with S = |op(A)| |op(B)|, u_acc and u_out the unit roundoffs of accumulation and output:

    |D - R| <= L * ((C * sqrt(K) + 2) * u_acc * |alpha| * S + 3 * u_acc * (|bias| + |beta * C|))
               + E * u_acc * (|alpha| * S + |bias| + |beta * C|) + u_out * |R| + tiny

L is the Lipschitz constant of the activation, E its own error in units of its argument, tiny covers products that are
subnormal. C was calibrated on a plain float32 loop over k, rounded after each multiplication and each addition: the
largest (|D - R| - u_out |R|) / (sqrt(K) u_acc S) over 64x64 results, seed 0:

    K                 2     3     8    64   512  4096  16384  65536
    normal         0.49  0.81  0.61  0.33  0.13  0.05   0.02   0.01
    uniform 0..1   0.42  0.69  0.77  0.79  0.73  0.88   0.80   0.74
    1..1.1         0.57  0.61  0.60  0.80  0.84  0.91   0.80   0.82

so C = 2 is twice the worst. Sums in another order (tiles, vectors, split K) err less. The reference of a float64
problem is float64 arithmetic of another order and errs as much as a candidate: there C = 4; what that lets pass, the
exact input sets do not. 16-bit problems accumulate in float32; tensor cores truncate when they add a step of 16
products to the sum, so their error has a part linear in K: TRUNCATION * K * u_acc * S, which is twice what a sum that
grows evenly loses when each of K / 16 additions cuts off half a unit of its last place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product

import numpy as np

from kernsearch.namespace import namespace, numpy_dtype, widened
from kernsearch.problem import Problem
from kernsearch.space import Config, InputSet

Arrays = dict[str, np.ndarray]
Scalars = dict[str, float]

C = {"float32": 2.0, "float64": 4.0}  # by the accumulation's dtype
ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SMALLEST = {"float32": 2.0**-149, "float64": 2.0**-1074, "float16": 2.0**-24, "bfloat16": 2.0**-133}
TRUNCATION = 1 / 16  # of u_acc S for each k: tensor cores cut off, not round, when they add a step of 16 to the sum
MOST_BATCHES = 64  # of which each is looked at by the identity
WHOLE = {"float32": 1048573, "float64": 1048573, "float16": 2039, "bfloat16": 251}  # positions: primes that are exact
SCALES = {"float32": 2.0**-66, "float64": 2.0**-520, "float16": 2.0**-9, "bfloat16": 2.0**-66}  # subnormal results
LIPSCHITZ = {"relu": 1.0, "gelu": 1.13, "gelu_tanh": 1.13, "silu": 1.1}
ACTIVATION_ERROR = {"relu": 0.0, "gelu": 8.0, "gelu_tanh": 8.0, "silu": 8.0}  # E: roundoffs of the argument


def accumulation(problem: Problem) -> str:
    """The dtype of sums: float64 for float64, float32 for everything else."""
    return "float64" if problem.dtype == "float64" else "float32"


def activation(problem: Problem) -> str | None:
    """The activation of the epilogue, or None."""
    return next((word for word in str(problem.option("epilogue")).split(",") if word in LIPSCHITZ), None)


def logical(problem: Problem, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """op(A) of shape (..., M, K) and op(B) of shape (..., K, N), as views."""
    layout = str(problem.option("layout"))
    a, b = inputs["A"], inputs["B"]
    return (a if layout[0] == "n" else a.swapaxes(-1, -2)), (b if layout[1] == "n" else b.swapaxes(-1, -2))


def bound(
    problem: Problem,
    inputs: Mapping[str, np.ndarray],
    scalars: Mapping[str, float],
    reference: Mapping[str, np.ndarray],
) -> Arrays:
    """The allowed absolute error of D, elementwise, float64, shape (..., M, N); see the top of this module.

    Inputs that are not finite count as zero: where they matter the reference is not finite either.
    """
    a, b = logical(problem, inputs)
    depth, acc, kind = problem.shape[-1], accumulation(problem), activation(problem)
    u, drift = ROUNDOFF[acc], 0.0 if problem.dtype == acc else TRUNCATION * depth
    # Sums of positive numbers have small relative errors, so the accumulation's precision is enough; 1 % covers them.
    with np.errstate(all="ignore"):
        product = _finite(widened(a, acc)) @ _finite(widened(b, acc))
        size = product.astype(np.float64) * (1.01 * abs(scalars.get("alpha", 1.0)))
        added = namespace(product).zeros((1, 1))
        if "bias" in inputs:
            added = added + _finite(widened(inputs["bias"])).astype(np.float64)
        if "C" in inputs and scalars.get("beta", 1.0) != 0:
            added = added + abs(scalars.get("beta", 1.0)) * _finite(widened(inputs["C"])).astype(np.float64)
        error = (C[acc] * math.sqrt(depth) + drift + 2) * u * size + 3 * u * added
        error *= LIPSCHITZ.get(kind or "", 1.0)
        error += ACTIVATION_ERROR.get(kind or "", 0.0) * u * (size + added)
        error += ROUNDOFF[problem.dtype] * namespace(product).nan_to_num(np.abs(reference["D"]), nan=0.0, posinf=0.0)
        error += (depth + 4) * SMALLEST[acc] + (SMALLEST[problem.dtype] if problem.dtype != acc else 0.0)
    return {"D": error}


def _finite(x: np.ndarray) -> np.ndarray:
    """|x|, with zeros for what is not finite."""
    xp = namespace(x)
    return xp.where(xp.isfinite(x), xp.abs(x), xp.zeros((), x.dtype))


def textbook(problem: Problem, inputs: Mapping[str, np.ndarray], scalars: Mapping[str, float]) -> Arrays:
    """D by plain loops and exactly rounded sums, to check the reference with. For tiny shapes only."""
    if problem.shape[:-3]:
        parts = [textbook(*one, scalars)["D"] for one, _ in matrices(problem, inputs, {})]
        return {"D": np.stack(parts).reshape(problem.shape[:-1])}
    a, b = (x.astype(float).tolist() for x in logical(problem, inputs))
    m, n, k = problem.shape
    act = {
        "relu": lambda x: max(x, 0.0),
        "gelu": lambda x: x * 0.5 * math.erfc(-x / math.sqrt(2.0)),
        "gelu_tanh": lambda x: x / (1.0 + math.exp(min(700.0, -1.5957691216057308 * (x + 0.044715 * x**3)))),
        "silu": lambda x: x * math.exp(min(x, 0.0)) / (1.0 + math.exp(-abs(x))),
        None: lambda x: x,
    }[activation(problem)]
    out = np.empty((m, n))
    for i, j in product(range(m), range(n)):
        terms = [scalars.get("alpha", 1.0) * math.fsum(a[i][p] * b[p][j] for p in range(k))]
        if "bias" in inputs:
            terms.append(float(inputs["bias"][j]))
        if "C" in inputs and scalars["beta"] != 0:
            terms.append(scalars["beta"] * float(inputs["C"][i, j]))
        out[i, j] = act(math.fsum(terms))
    return {"D": out}


def identity(
    problem: Problem,
    inputs: Mapping[str, np.ndarray],
    scalars: Mapping[str, float],
    outputs: Mapping[str, np.ndarray],
    rng: np.random.Generator,
) -> float | None:
    """How well D t = alpha op(A) (op(B) t) + bias . t + beta C t holds for random signs t, in float64.

    The largest error by what is allowed, at most 1 when it holds; None when the epilogue is not linear. It costs
    three matrix-vector products, so it is the first look at a large result. It is made for elements that are random
    with mean 0, as those of the first input set: there the error of a plain float32 loop over k is at most
    1.3 u |row of A| |B| whatever K is (0.7 at K = 4096), and errors of different columns add like independent ones.
    Three times that is allowed, which few missing addends of a single element pass.
    """
    if activation(problem) is not None:
        return None
    if lead := problem.shape[:-3]:
        if math.prod(lead) > MOST_BATCHES:
            return None
        errors = [identity(*one, scalars, out, rng) for one, out in matrices(problem, inputs, outputs)]
        return max(error for error in errors if error is not None)
    a, b = logical(problem, inputs)
    m, n, k = problem.shape
    xp = namespace(a)
    t = xp.asarray(rng.choice([-1.0, 1.0], n))
    acc = accumulation(problem)
    alpha, u = scalars.get("alpha", 1.0), ROUNDOFF[acc]
    bt, column = xp.empty(k), xp.zeros(n)
    for rows in _parts(k, n):
        part = widened(b[rows], np.float64)
        bt[rows] = part @ t
        column += xp.einsum("kn,kn->n", part, part)
    added = float(widened(inputs["bias"], np.float64) @ t) if "bias" in inputs else 0.0
    worst = 0.0
    for rows in _parts(m, max(n, k)):
        part = widened(a[rows], np.float64)
        want = alpha * (part @ bt) + added
        size = abs(alpha) * xp.sqrt(xp.einsum("mk,mk->m", part, part))
        allowed = 2 * C[acc] * u * size * math.sqrt(float(column.sum()))
        if problem.dtype != acc:  # each element was rounded once more, and independently
            rounded = widened(outputs["D"][rows], np.float64)
            allowed = allowed + 4 * ROUNDOFF[problem.dtype] * xp.sqrt(xp.einsum("mn,mn->m", rounded, rounded))
        if "C" in inputs and scalars["beta"] != 0:
            c = widened(inputs["C"][rows], np.float64)
            want = want + scalars["beta"] * (c @ t)
            allowed = allowed + 4 * u * abs(scalars["beta"]) * xp.sqrt(xp.einsum("mn,mn->m", c, c))
        if "bias" in inputs:
            allowed = allowed + 4 * u * float(xp.linalg.norm(widened(inputs["bias"], np.float64)))
        error = xp.abs(widened(outputs["D"][rows], np.float64) @ t - want) / (allowed + SMALLEST[problem.dtype])
        worst = max(worst, math.inf if not xp.isfinite(error).all() else float(error.max()))
    return worst


def matrices(
    problem: Problem, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]
) -> Iterator[tuple[tuple[Problem, Arrays], Arrays]]:
    """((problem, inputs), outputs) of each gemm of a batch, as views, in C order."""
    one = problem.at(problem.shape[-3:])
    for at in np.ndindex(problem.shape[:-3]):
        mine, theirs = ({n: x if n == "bias" else x[at] for n, x in of.items()} for of in (inputs, outputs))
        yield (one, mine), theirs


def _parts(rows: int, columns: int) -> list[slice]:
    """Slices of rows so small that a float64 copy of each takes about 8 MB."""
    step = max(1, (1 << 20) // columns)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


# -- inputs


def _shapes(problem: Problem) -> dict[str, tuple[int, ...]]:
    *lead, m, n, k = problem.shape
    layout, words = str(problem.option("layout")), str(problem.option("epilogue")).split(",")
    found: dict[str, tuple[int, ...]] = {
        "A": (*lead, m, k) if layout[0] == "n" else (*lead, k, m),
        "B": (*lead, k, n) if layout[1] == "n" else (*lead, n, k),
    }
    if "bias" in words:
        found["bias"] = (n,)
    if "residual" in words:
        found["C"] = (*lead, m, n)
    return found


def _scalars(problem: Problem, alpha: float, beta: float) -> Scalars:
    return {"alpha": alpha, "beta": beta} if "residual" in str(problem.option("epilogue")) else {"alpha": alpha}


def _random(problem: Problem, rng: np.random.Generator) -> Arrays:
    dtype = numpy_dtype(problem.dtype)
    drawn = dtype if dtype.itemsize >= 4 else np.dtype(np.float32)
    return {
        name: rng.standard_normal(shape, drawn).astype(dtype, copy=False) for name, shape in _shapes(problem).items()
    }


def _normal(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    return _random(problem, rng), _scalars(problem, 0.75, -1.25)


def _integers(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    """So small that every partial sum is exact in any order."""
    digits = {"float32": 24, "float64": 53}[accumulation(problem)]
    most = max(1, min(8, math.isqrt(2 ** (digits - 2) // problem.shape[-1])))
    arrays = {
        name: rng.integers(-most, most + 1, shape, dtype=np.int8).astype(numpy_dtype(problem.dtype))
        for name, shape in _shapes(problem).items()
    }
    return arrays, _scalars(problem, -1.0, 2.0)


def _one_hot(problem: Problem, rng: np.random.Generator, hot: str) -> tuple[Arrays, Scalars]:
    """One operand picks rows or columns of the other, whose elements say where they stand."""
    *lead, m, n, k = problem.shape
    arrays = {name: np.zeros(shape, numpy_dtype(problem.dtype)) for name, shape in _shapes(problem).items()}
    a, b = logical(problem, arrays)
    for number, at in enumerate(np.ndindex(*lead)):
        if hot == "A":
            a[at][np.arange(m), rng.integers(0, k, m)] = 1
            b[at][:] = _positions(k, n, problem, number)
        else:
            b[at][rng.integers(0, k, n), np.arange(n)] = 1
            a[at][:] = _positions(m, k, problem, number)
        if "C" in arrays:
            arrays["C"][at][:] = _positions(m, n, problem, number)
    if "bias" in arrays:
        arrays["bias"][:] = np.arange(n) % 97
    return arrays, _scalars(problem, 1.0, 1.0)


def _positions(rows: int, columns: int, problem: Problem, batch: int = 0) -> np.ndarray:
    """Whole numbers that the dtype holds exactly and that differ between elements as far as they can."""
    i, j = np.arange(rows, dtype=np.int64)[:, None], np.arange(columns, dtype=np.int64)[None, :]
    return ((batch * rows + i) * columns + j) % WHOLE[problem.dtype]


def _not_finite(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    """A few NaN and infinities, so that they reach some rows and columns and must not reach others."""
    arrays = _random(problem, rng)
    for name, array in arrays.items():
        flat = array.reshape(-1)
        for value in (np.nan, np.inf, -np.inf) if name != "bias" else (np.inf,):
            if rng.random() < 0.7:
                flat[rng.integers(0, flat.size)] = value
    return arrays, _scalars(problem, 1.5, 0.5)


def _beta_zero(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    """beta = 0 does not look at C, which is NaN all over."""
    arrays = _random(problem, rng)
    if "C" in arrays:
        arrays["C"][:] = np.nan
    return arrays, _scalars(problem, -2.0, 0.0)


def _tiny(problem: Problem, rng: np.random.Generator) -> tuple[Arrays, Scalars]:
    """Products are subnormal; they are kept."""
    arrays = _random(problem, rng)
    scale = numpy_dtype(problem.dtype).type(SCALES[problem.dtype])
    arrays["A"] *= scale
    arrays["B"] *= scale
    for name in set(arrays) - {"A", "B"}:
        arrays[name][:] = 0
    return arrays, _scalars(problem, 1.0, 1.0)


INPUTS = (
    InputSet("normal", _normal),
    InputSet("small integers", _integers, exact=True),
    InputSet("one-hot A", lambda problem, rng: _one_hot(problem, rng, "A"), exact=True),
    InputSet("one-hot B", lambda problem, rng: _one_hot(problem, rng, "B"), exact=True),
    InputSet("NaN and Inf", _not_finite),
    InputSet("beta = 0, C NaN", _beta_zero),
    InputSet("subnormal products", _tiny),
)


# -- awkward shapes

MOST_WORK = 1 << 22  # multiply-adds of an awkward shape: a naive kernel takes some milliseconds
ON_DEVICE = 16  # times as much where a device does it
LARGEST_TILE = 1 << 13


def edges(problem: Problem, config: Config) -> tuple[tuple[int, ...], ...]:
    """Ones, primes, and one off each tile of this config; the largest shape last, which has several tiles an axis.

    A parameter speaks of the axis whose letter it holds: MR, MC, BM, TM of M; KC, BK of K. SPLIT cuts K: fewer, and
    one more, than a slab each. SMS is no parameter but the multiprocessors of the device.
    """
    tiles: dict[str, list[int]] = {"M": [], "N": [], "K": []}
    for letter, value in sorted(config.items()):
        axes = ["K"] if letter == "SPLIT" else [axis for axis in tiles if axis in letter and len(letter) <= 2]
        if len(axes) == 1:
            tiles[axes[0]].append(value)
    sets = {axis: sorted({t for t in values if 1 < t <= LARGEST_TILE}) or [8] for axis, values in tiles.items()}
    found: list[tuple[int, int, int]] = [(1, 1, 1), (1, 7, 5), (7, 1, 3), (2, 3, 1), (13, 17, 19)]
    rows, columns, depths = (sets[axis] for axis in "MNK")
    small = min(rows), min(columns), min(depths)
    found += [(r + d, 5, 7) for r in rows for d in (-1, 1)]
    found += [(3, c + d, 11) for c in columns for d in (-1, 1)]
    found += [(5, 3, k + d) for k in depths for d in (-1, 0, 1)]
    found += [(small[0] + 1, small[1] - 1, small[2] + 1), (small[0], small[1], small[2])]
    found.append((2 * small[0] + 3, 2 * small[1] + 5, 2 * small[2] + 1))
    # Enough work that threads meet.
    several = [max(2 * max(rows) + 3, 67), max(2 * max(columns) + 5, 71), max(2 * max(depths) + 1, 73)]
    most = MOST_WORK * ON_DEVICE if "SMS" in config else MOST_WORK
    while math.prod(several) > most:  # give up several tiles along the longest axis first
        longest = several.index(max(several))
        several[longest] = several[longest] // 2 + 1
    found += _on_device(config)
    found = [shape for shape in dict.fromkeys(found) if min(shape) >= 1 and math.prod(shape) <= most]
    found += _many_tiles(config)
    return (*(shape for shape in found if shape != tuple(several)), tuple(several))


def _on_device(config: Config) -> list[tuple[int, int, int]]:
    """Around the tiles of blocks with all sizes multiples of 8, which kernels with vectors of elements may want, and
    with a K that goes around a ring of STAGES slots more than once."""
    if not {"SMS", "BM", "BN", "BK"} <= config.keys():
        return []
    m, n, k = config["BM"], config["BN"], config["BK"]
    around = (config.get("STAGES", 2) * 2 + 1) * k
    return [(8, 8, 8), (m + 8, n - 8, k + 8), (m - 8, n + 8, around + 8), (24, 40, around), (m, 8, around + 3)]


def _many_tiles(config: Config) -> list[tuple[int, int, int]]:
    """More tiles than multiprocessors, so that blocks that stay for several tiles have them; ragged in M."""
    if not {"SMS", "BM", "BN"} <= config.keys():
        return []
    m, n, k = config["BM"], config["BN"], config.get("BK", 8)
    rows = math.ceil(math.sqrt((config["SMS"] + 2) * n / m))
    columns = math.ceil((config["SMS"] + 2) / rows)
    return [(rows * m - m // 2 + 3, columns * n - 8 if n > 8 else columns * n, 2 * k + 8)]
