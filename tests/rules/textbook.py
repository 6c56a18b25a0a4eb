"""Textbook programs of ops, some of which have no kernels yet, and inputs for them."""

from __future__ import annotations

import numpy as np
from kernsearch.spaces.gemm.root import root as gemm_root

from kernsearch.problem import Problem
from kernsearch.program import Program
from kernsearch.program.sketch import Handle, Sketch


def gemm(epilogue: str = "bias,gelu,residual", layout: str = "nn", dtype: str = "float32") -> Program:
    return gemm_root(Problem("gemm", (1, 1, 1), dtype, (("epilogue", epilogue), ("layout", layout))))


def _softmax(s: Sketch, x: Handle, over: str) -> Handle:
    m = s.reduce("m", "max", x, over=over)
    e = s.map("e", ("exp", s.map("shifted", ("shift", x, m))))
    total = s.reduce("l", "sum", e, over=over)
    return s.map("p", ("normalize", e, total))


def softmax() -> Program:
    """Y[m,k] = softmax over k of X[m,k]."""
    s = Sketch({"m": "M", "k": "K"}, acc="float32")
    return s.build(Y=_softmax(s, s.input("X", "mk", "float32"), "k"))


def attention(*, causal: bool = True, normalizer: bool = False) -> Program:
    """O = softmax(scale Q K^T, masked) V, G query heads for each of H key heads; `normalizer`: L = m + log l too."""
    extents = {"b": "B", "h": "H", "g": "G", "q": "Q", "k": "K", "d": "D", "e": "E"}
    s = Sketch(extents, acc="float32")
    q, k = s.input("Q", "bhgqd", "float32"), s.input("K", "bhkd", "float32")
    v = s.input("V", "bhke", "float32")
    x = s.map("scaled", ("mul", s.scalar("scale"), s.dot("s", q, k, over="d")))
    if causal:
        x = s.map("masked", ("mask", x, "q", "k", "OFF"))
    outs = {"O": s.dot("o", _softmax(s, x, "k"), v, over="k")}
    if normalizer:
        m, total = Handle("m", "m", tuple("bhgq")), Handle("l", "l", tuple("bhgq"))
        outs["L"] = s.map("logsum", ("add", m, ("log", total)))
    return s.build(**outs)


def product_softmax() -> Program:
    """Held out: Y[m,n] = softmax over n of A B."""
    s = Sketch({"m": "M", "n": "N", "k": "K"}, acc="float32")
    a, b = s.input("A", "mk", "float32"), s.input("B", "kn", "float32")
    return s.build(Y=_softmax(s, s.dot("acc", a, b, over="k"), "n"))


def norm_product() -> Program:
    """Held out: Y[m,n] = (A / rms(A)) B, the norm of each row over k."""
    s = Sketch({"m": "M", "n": "N", "k": "K"}, acc="float32")
    a, b = s.input("A", "mk", "float32"), s.input("B", "kn", "float32")
    norm = s.map("norm", ("sqrt", s.reduce("squares", "sum", ("mul", a, a), over="k")))
    return s.build(Y=s.dot("acc", s.map("unit", ("normalize", a, norm)), b, over="k"))


def moments() -> Program:
    """Held out: Y[m,k] = (X - sum X) / sqrt(sum X^2), two independent sums over the same rows."""
    s = Sketch({"m": "M", "k": "K"}, acc="float32")
    x = s.input("X", "mk", "float32")
    total = s.reduce("total", "sum", x, over="k")
    squares = s.reduce("squares", "sum", ("mul", x, ("neg", x)), over="k")
    root = s.map("root", ("sqrt", ("neg", squares)))
    return s.build(Y=s.map("y", ("normalize", ("sub", x, total), root)))


def nested(*, saved: bool = True) -> Program:
    """D[q] = sum over k of X[q,k] * (Y Z^T)[q,k]; O = X Z was saved by an earlier call, or is an output as well."""
    s = Sketch({"q": "Q", "k": "K", "e": "E"}, acc="float32")
    x, y, z = (s.input(name, axes, "float32") for name, axes in (("X", "qk"), ("Y", "qe"), ("Z", "ke")))
    o = s.dot("o", x, z, over="k")
    d = s.dot("d", x, s.dot("yz", y, z, over="e"), over="k")
    if not saved:
        return s.build(D=d, O=o)
    s.fact(s.input("O", "qe", "float32"), o)
    return s.build(D=d)


ROOTS = {
    "gemm": gemm,
    "softmax": softmax,
    "attention": attention,
    "product_softmax": product_softmax,
    "norm_product": norm_product,
    "moments": moments,
    "nested": nested,
}


def inputs(program: Program, sizes: dict[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Random normal arrays for the program's inputs."""
    rng = np.random.default_rng(seed)
    arrays = {
        name: rng.normal(size=[program.extent(a, sizes) for a in program.nodes[name].fields[0].axes])
        for name in program.inputs
    }
    if program.facts:
        arrays["O"] = arrays["X"] @ arrays["Z"]  # a saved input is what it was saved as
    return arrays


SCALARS = {"alpha": 1.5, "beta": -0.75, "scale": 0.6}


def by_hand(op: str, x: dict[str, np.ndarray], sizes: dict[str, int]) -> np.ndarray:
    """The op in plain NumPy."""

    def soft(s: np.ndarray) -> np.ndarray:
        top = s.max(-1, keepdims=True)
        e = np.exp(s - np.where(np.isneginf(top), 0, top))
        total = e.sum(-1, keepdims=True)
        return np.where(total == 0, 0, e / np.where(total == 0, 1, total))

    match op:
        case "softmax":
            return soft(x["X"])
        case "product_softmax":
            return soft(x["A"] @ x["B"])
        case "norm_product":
            return (x["A"] / np.sqrt((x["A"] ** 2).sum(1, keepdims=True))) @ x["B"]
        case "nested":
            return (x["X"] * (x["Y"] @ x["Z"].T)).sum(1)
        case "moments":
            return (x["X"] - x["X"].sum(1, keepdims=True)) / np.sqrt((x["X"] ** 2).sum(1, keepdims=True))
        case "attention":
            s = SCALARS["scale"] * np.einsum("bhgqd,bhkd->bhgqk", x["Q"], x["K"])
            rows, columns = np.ogrid[: s.shape[-2], : s.shape[-1]]
            s = np.where(columns <= rows + sizes["OFF"], s, -np.inf)
            return np.einsum("bhgqk,bhke->bhgqe", soft(s), x["V"])
    raise KeyError(op)
