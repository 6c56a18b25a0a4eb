"""Templates of gemm on CUDA, compiled for three architectures: every pair of template, dtype, layout, architecture,
corner of the space and epilogue; and what the machine code and the compiler's refusals say."""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import cache
from itertools import product
from math import prod
from pathlib import Path

import pytest
from pairwise import cover, pairs

from kernsearch import backends, model, registry
from kernsearch.backends import Compiled
from kernsearch.backends.cuda.machine_code import disassembled
from kernsearch.candidate import lower
from kernsearch.derive import Variant, derive
from kernsearch.errors import Rejected
from kernsearch.feasible import FeasibleSpace
from kernsearch.launch import itemsize
from kernsearch.model import ceilings
from kernsearch.plan import KernelPlan
from kernsearch.template import Template

MOST_COMPILES = 150
SHAPES = {"smallest": (40, 40, 4096), "largest": (2048, 2048, 16384), "random": (2304, 1544, 4096)}
FULL = "bias,gelu,residual"
ARCHITECTURES = ("sm_80", "sm_89", "sm_90a")
TIMEOUT_S = 120
RING = "BM128 BN128 BK32 WM64 WN32 STAGES4 SLICES1 GROUP4 BLOCKS1"
SAMPLED = 40  # configs of which the largest is taken
BACKEND = backends.get("cuda")


@cache
def templates() -> dict[str, Template]:
    """Those of gemm, and what runs anything; but not what only reduces or spreads, which no program of gemm does."""
    usable = (
        t for t in registry.templates("cuda") if not t.source.startswith(("attention/", "softmax/", "transpose/"))
    )
    return {template.name: template for template in usable if template.name not in ("reduce", "spread")}


@cache
def variants(dtype: str, layout: str, epilogue: str) -> dict[str, Variant]:
    """For each template that occurs, the first variant with it: the one that moves the fewest bytes."""
    op = registry.op("gemm")
    problem = op.problem(SHAPES["random"], dtype, backend="cuda", layout=layout, epilogue=epilogue)
    found: dict[str, Variant] = {}
    for variant in derive(problem, op, list(templates().values())).variants:
        for template in variant.templates:
            found.setdefault(template.name, variant)
    return found


@cache
def space(template: str, dtype: str, layout: str, epilogue: str, arch: str, corner: str) -> FeasibleSpace | None:
    """Configs of the variant of a template; None when there are none."""
    variant = variants(dtype, layout, epilogue).get(template)
    if variant is None:
        return None
    sizes = {**dict(zip("MNK", SHAPES[corner], strict=True)), "ITEMSIZE": itemsize(dtype)}
    device = BACKEND.compile_only(arch)
    made = FeasibleSpace(variant.params, variant.constraints, device, {**sizes, "THREADS": device.sms})
    return made if next(made.iterate(), None) is not None else None


@cache
def config(row: tuple[str, ...]) -> dict[str, int]:
    """The config at a corner: most letters at their smallest, the largest product of a sample, or any."""
    made, corner, rng = space(*row), row[-1], random.Random(repr(row))
    assert made is not None
    if corner == "random":
        return made.sample(rng)
    if corner == "largest":
        drawn = [made.sample(rng) for _ in range(SAMPLED)]
        return max(drawn, key=lambda found: prod(max(1, value) for value in found.values()))
    smallest = {letter: values[0] for letter, values in made.domains.items()}
    return made.nearest(smallest) or next(made.iterate())


@cache
def rows() -> list[tuple[str, ...]]:
    factors = {
        "template": sorted(templates()),
        "dtype": ("bfloat16", "float16", "float32"),
        "layout": ("nn", "nt", "tn", "tt"),
        "epilogue": ("none", FULL),
        "arch": ARCHITECTURES,
        "corner": tuple(SHAPES),
    }
    return [tuple(row.values()) for row in cover(factors, lambda row: space(*row.values()) is not None)]


def kernel(template, dtype, layout, epilogue, arch, corner, letters) -> KernelPlan:
    """The kernel of a template, at any config at all."""
    variant = variants(dtype, layout, epilogue)[template]
    problem = registry.op("gemm").problem(SHAPES[corner], dtype, backend="cuda", layout=layout, epilogue=epilogue)
    plan = lower(variant, letters, problem, BACKEND, BACKEND.compile_only(arch))
    return next(kernel for kernel in plan.kernels if kernel.template == template)


@cache
def good(template: str, dtype: str, arch: str) -> Compiled:
    """A template at a large config that is meant to be fast: RING, or the one that the model likes best."""
    made, device = space(template, dtype, "nn", "none", arch, "random"), BACKEND.compile_only(arch)
    assert made is not None
    if template == "async_pipeline":
        assert made.contains(letters := words(RING)) is None
    else:
        variant = variants(dtype, "nn", "none")[template]
        letters = model.rank(variant, made, device, made.sizes, ceilings.guess(device))[0][1]
    plan = kernel(template, dtype, "nn", "none", arch, "random", letters)
    return BACKEND.compile(plan, device, timeout_s=TIMEOUT_S)


@cache
def instructions(cubin: Path) -> Counter[str]:
    """How often each instruction stands in a cubin, without its modifiers."""
    code = disassembled(cubin, "-c")
    return Counter(re.findall(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9]*)", code, re.MULTILINE))


def words(text: str) -> dict[str, int]:
    return {letter: int(value) for letter, value in re.findall(r"([A-Z]+)(\d+)", text)}


def test_the_cover_has_every_pair_that_can_be_and_few_rows() -> None:
    names = ("template", "dtype", "layout", "epilogue", "arch", "corner")
    held = {pair for row in rows() for pair in pairs(dict(zip(names, row, strict=True)))}
    assert len(rows()) <= MOST_COMPILES
    assert {row[0] for row in rows()} == set(templates())
    for values in product(*({row[i] for row in rows()} for i in range(len(names)))):
        if space(*values) is not None:
            assert set(pairs(dict(zip(names, values, strict=True)))) <= held, values


def test_covers_are_small_and_leave_out_what_is_not_allowed() -> None:
    factors = {letter: tuple("0123") for letter in "abcde"}
    found = cover(factors, lambda row: row["a"] != row["b"])
    assert found == cover(factors, lambda row: row["a"] != row["b"]) and len(found) < 35
    assert all(row["a"] != row["b"] for row in found)
    held = {pair for row in found for pair in pairs(row)}
    assert len(held) == 10 * 16 - 4


@pytest.mark.timeout(900)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_feasible_config_compiles_and_can_be_launched(arch: str) -> None:
    """The compile gate refuses what exceeds registers or shared memory, serialized wgmma and an ignored setmaxnreg."""
    chosen = [row for row in rows() if row[4] == arch]
    device = BACKEND.compile_only(arch)
    plans = [kernel(*row, config(row)) for row in chosen]
    refused = {}
    for at, outcome in BACKEND.compile_many(plans, device, jobs=int(device.cores), timeout_s=TIMEOUT_S):
        if isinstance(outcome, Rejected):
            refused[" ".join((*chosen[at], str(config(chosen[at]))))] = outcome.reason
        else:
            assert outcome.evidence["warnings"] == "", (chosen[at], config(chosen[at]))
    assert refused == {}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rung_seven_multiplies_by_warpgroups_and_moves_tiles_by_the_copy_engine(dtype: str) -> None:
    found = instructions(good("warp_specialized", dtype, "sm_90a").path)
    assert found["HGMMA"] and found["UTMALDG"] and found["UTMASTG"] and found["USETMAXREG"]
    assert not found["HMMA"]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_rung_six_multiplies_by_warps_loads_matrices_and_copies_asynchronously(arch: str) -> None:
    found = instructions(good("async_pipeline", "bfloat16", arch).path)
    assert found["HMMA"] and found["LDSM"] and found["LDGSTS"]


@pytest.mark.parametrize(
    "template, dtype, arch",
    [
        *(("simt_pipeline", "float32", arch) for arch in ARCHITECTURES),
        *(("async_pipeline", "bfloat16", arch) for arch in ARCHITECTURES),
        ("tensor_core", "bfloat16", "sm_80"),
        ("register_tile", "float32", "sm_80"),
        *((name, "bfloat16", "sm_90a") for name in ("warp_specialized", "warp_specialized_swapped", "cluster_split")),
    ],
)
def test_good_configs_keep_everything_in_registers(template: str, dtype: str, arch: str) -> None:
    compiled = good(template, dtype, arch)
    found = instructions(compiled.path)
    assert (compiled.evidence["spill_stores"], found["STL"], found["LDL"]) == (0, 0, 0)


# a config that breaks a constraint, the constraint, and what the compiler says of it
TWINS = [
    ("register_tile", "float32", "sm_80", "BM128 BN128 BK8 TM2 TN4",
     "block has too many threads", "block has too many threads"),
    ("register_tile", "float32", "sm_80", "BM24 BN64 BK8 TM16 TN4",
     "thread tiles do not fill the block tile", "thread tiles do not fill the block tile"),
    ("shared_tile", "float32", "sm_80", "BM64 BN32 BK8", "block has too many threads", "block has too many threads"),
    ("vectorized", "float32", "sm_80", "BM24 BN32 BK8 TM4 TN4",
     "block is not a whole number of warps", "thread tiles do not fill whole warps"),
    ("simt_pipeline", "float32", "sm_75", "BM128 BN128 BK16 TM8 TN8 STAGES2 GROUP1",
     "cp.async came with sm_80", "error"),
    ("simt_pipeline", "float32", "sm_80", "BM100 BN128 BK16 TM8 TN8 STAGES2 GROUP1",
     "thread tiles do not fill the block tile", "thread tiles do not fill the block tile"),
    ("simt_pipeline", "float32", "sm_80", "BM128 BN128 BK32 TM8 TN8 STAGES6 GROUP1",
     "stages exceed shared memory", "bytes of shared memory"),
    ("tensor_core", "bfloat16", "sm_80", "BM64 BN64 BK32 WM128 WN16 GROUP1 BLOCKS1",
     "a block's tile is not a whole number of warp tiles", "a block's tile is not a whole number of warp tiles"),
    ("tensor_core", "float32", "sm_80", "BM64 BN64 BK32 WM32 WN32 GROUP1 BLOCKS1",
     "tensor cores take 16-bit operands here", "tensor cores take 16-bit operands here"),
    ("tensor_core", "bfloat16", "sm_75", "BM64 BN64 BK32 WM32 WN32 GROUP1 BLOCKS1", "that came with sm_80", "error"),
    ("async_pipeline", "bfloat16", "sm_80", "BM64 BN64 BK32 WM32 WN32 STAGES3 SLICES4 GROUP1 BLOCKS1",
     "BK is not between two and four steps", "BK is not 16 deep for each slice"),
    ("async_pipeline", "bfloat16", "sm_89", "BM128 BN128 BK64 WM32 WN64 STAGES4 SLICES1 GROUP1 BLOCKS1",
     "the block's tiles exceed shared memory", "bytes of shared memory"),
    ("warp_specialized", "bfloat16", "sm_90a", "BM96 BN128 BK64 CONSUMERS2",
     "consumers do not get 64 or 128 rows each", "every consumer has whole products of 64 rows"),
    ("warp_specialized", "bfloat16", "sm_90a", "BM256 BN256 BK64 CONSUMERS2 STAGES2",
     "sums exceed a consumer's registers", "sums of a tile must fit the registers"),
    ("warp_specialized", "bfloat16", "sm_90a", "BM128 BN128 BK64 STAGES12",
     "the ring, and what leaves, exceed shared memory", "bytes of shared memory"),
    ("warp_specialized", "bfloat16", "sm_80", "BM128 BN128 BK64", "wgmma is Hopper's", "error"),
    ("warp_specialized_direct", "float32", "sm_90a", "BM128 BN128 BK64",
     "wgmma takes 16-bit operands", "operands of two bytes"),
]  # fmt: skip
PLAIN = {"CONSUMERS": 2, "PINGPONG": 0, "STAGES": 4, "CM": 1, "CN": 1, "GROUP": 1, "ALONG": 0, "BUFFERS": 2}


@pytest.mark.parametrize("template, dtype, arch, letters, constraint, complaint", TWINS)
def test_what_a_constraint_excludes_is_refused_by_the_compiler_too(
    template: str, dtype: str, arch: str, letters: str, constraint: str, complaint: str
) -> None:
    device, variant = BACKEND.compile_only(arch), variants(dtype, "nn", "none")[template]
    given = {**(PLAIN if template.startswith("warp_specialized") else {}), **words(letters)}
    sizes = {**dict(zip("MNK", SHAPES["largest"], strict=True)), "ITEMSIZE": itemsize(dtype)}
    broken = [rule.reason for rule in variant.constraints if not rule.holds(given, device, sizes)]
    assert any(constraint in reason for reason in broken), broken
    with pytest.raises(Rejected) as refused:
        BACKEND.compile(kernel(template, dtype, "nn", "none", arch, "largest", given), device, timeout_s=TIMEOUT_S)
    assert refused.value.gate == "compile" and complaint in refused.value.reason
