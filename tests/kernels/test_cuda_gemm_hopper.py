"""Warp-specialised gemm: it compiles without loss on any machine, and is exact on a Hopper GPU."""

import numpy as np
import pytest
from host_cuda import hopper
from kernsearch.spaces.gemm import templates as gemm
from kernsearch.spaces.generic import templates as generic

from kernsearch import backends, launch
from kernsearch.candidate import lower
from kernsearch.derive import derive
from kernsearch.errors import CompilerError
from kernsearch.registry import op

SMALL = {"BM": 128, "BN": 128, "BK": 64, "CONSUMERS": 2, "PINGPONG": 0, "STAGES": 5, "CM": 1, "CN": 1, "GROUP": 4,
         "ALONG": 0, "BUFFERS": 2}  # fmt: skip
SHORT = {"BM": 128, "BN": 64, "BK": 64, "CONSUMERS": 2, "STAGES": 4, "SPLIT": 4}
AWKWARD = [
    [256, 256, 256],
    [1, 8, 1],
    [129, 257, 65],
    [640, 1288, 1000],
    [1543, 1001, 520],
    [3000, 130, 72],
    [129, 264, 65],
    [1543, 1000, 520],
    [3000, 136, 72],
    [136, 1544, 200],
]
ONE_TILE = [[128, 128, 64], [128, 128, 256]]


def _case(variant, *, shapes=AWKWARD, config=SMALL, dtype="bfloat16", more=None, **changes):
    return {"variant": variant, "shapes": shapes, "dtype": dtype, "config": {**config, **changes}, **(more or {})}


CASES = {
    "first direct nt": _case("warp_specialized_direct", shapes=[*ONE_TILE, *AWKWARD], more={"layout": "nt"}),
    "first direct nn": _case("warp_specialized_direct", shapes=[*ONE_TILE, *AWKWARD]),
    "first bulk nn": _case("warp_specialized", shapes=[*ONE_TILE, *AWKWARD]),
    **{
        f"{name} {layout} {dtype}": _case(name, dtype=dtype, more={"layout": layout})
        for name in ("warp_specialized", "warp_specialized_swapped", "warp_specialized_direct")
        for layout, dtype in (("nn", "float16"), ("nt", "bfloat16"), ("tn", "bfloat16"), ("tt", "float16"))
    },
    "wide": _case("warp_specialized", BN=256, STAGES=4),
    "wide of one consumer": _case("warp_specialized", BM=64, BN=256, STAGES=4, CONSUMERS=1),
    "columns in vain": _case("warp_specialized", BN=224, STAGES=4),
    "columns in vain, float16": _case("warp_specialized", BN=208, STAGES=4, dtype="float16"),
    "columns in vain, tall": _case("warp_specialized", BM=256, BN=112, STAGES=4),
    "columns in vain, turned": _case("warp_specialized_swapped", BM=256, BN=112, STAGES=4, more={"layout": "tn"}),
    "columns in vain, cluster along M": _case("warp_specialized", CM=2, BN=224, STAGES=4),
    "columns in vain, cluster along N": _case("warp_specialized", CN=2, BN=176, STAGES=4),
    "columns in vain, packed": _case("warp_specialized_packed", BN=144, STAGES=4, more={"aligned": False}),
    "no columns in vain, K contiguous": _case("warp_specialized", BN=112, STAGES=4, more={"layout": "nt"}),
    "three consumers, narrow": _case("warp_specialized", BM=192, BN=176, STAGES=3, CONSUMERS=3),
    "tiny columns": _case("warp_specialized", BN=16, STAGES=8, CONSUMERS=1),
    "tall": _case("warp_specialized", BM=256, STAGES=4, GROUP=1),
    "tall and wide": _case("warp_specialized", BM=256, BN=192, STAGES=3, ALONG=1),
    "three consumers": _case("warp_specialized", BM=192, BN=192, STAGES=3, CONSUMERS=3),
    "deep stages": _case("warp_specialized", BK=128, STAGES=3),
    "deep stages of K contiguous": _case("warp_specialized", BK=128, STAGES=3, more={"layout": "nt"}),
    "in turns": _case("warp_specialized", PINGPONG=1, STAGES=5),
    "in turns, tall": _case("warp_specialized", PINGPONG=1, BM=192, STAGES=4, GROUP=1),
    "in turns, wide": _case("warp_specialized", PINGPONG=1, BN=192, STAGES=4, ALONG=1),
    "in turns, direct": _case("warp_specialized_direct", PINGPONG=1, STAGES=4),
    "cluster along M": _case("warp_specialized", CM=2, BN=256, STAGES=4),
    "cluster along N": _case("warp_specialized", CN=2, BN=192, STAGES=4),
    "cluster along M, K contiguous": _case("warp_specialized", CM=2, more={"layout": "nt"}),
    "cluster along N, M contiguous": _case("warp_specialized", CN=2, more={"layout": "tn"}),
    "cluster of four": _case("warp_specialized", CM=2, CN=2, BN=96),
    "cluster, in turns": _case("warp_specialized", CM=2, PINGPONG=1, BN=160, STAGES=4),
    "swapped, wide": _case("warp_specialized_swapped", BN=224, STAGES=4, more={"layout": "nt"}),
    "swapped, tiny": _case("warp_specialized_swapped", BN=16, STAGES=8),
    "direct, unaligned output": _case("warp_specialized_direct", BN=224, STAGES=3, more={"aligned_out": False}),
    **{
        f"{name} {layout}": _case(name, more={"layout": layout, "aligned": False, "shift": 1})
        for name in ("warp_specialized_packed", )
        for layout in ("nn", "nt", "tn", "tt")
    },
    "packed A": _case("warp_specialized_packed_a", shapes=[[1543, 1600, 1001], [64, 64, 1]], more={"aligned": False}),
    "packed B": _case("warp_specialized_packed_b", shapes=[[1543, 2311, 1000], [64, 63, 8]], more={"aligned": False}),
    "bias and residual, bulk": _case("warp_specialized", more={"epilogue": "bias,relu,residual"}),
    "bias and residual, turned": _case("warp_specialized_swapped", more={"epilogue": "bias,relu,residual"}),
    "bias and residual, direct": _case("warp_specialized_direct", more={"epilogue": "bias,relu,residual"}),
    **{
        f"{name} of {split}, {layout}": _case(name, config=SHORT, SPLIT=split, more={"layout": layout})
        for name in ("cluster_split", "cluster_split_swapped")
        for split, layout in ((2, "nn"), (4, "nt"), (8, "tn"))
    },
    "cluster_split, tiny": _case("cluster_split_swapped", config=SHORT, BN=16, SPLIT=8, STAGES=8,
                                 shapes=[[16, 4096, 4096], [7, 1000, 520]]),
    "cluster_split, large": _case("cluster_split", config=SHORT, BN=256, STAGES=4, SPLIT=16,
                                  shapes=[[512, 512, 65536], [400, 520, 3000]]),
    "cluster_split, everything": _case("cluster_split", config=SHORT, more={"epilogue": "bias,relu,residual"}),
    "slabs": _case("warp_specialized_slabs+combine", config={**SMALL, "SPLIT": 3, "BN": 256, "STAGES": 4}),
    "slabs, in turns": _case("warp_specialized_slabs+combine", config={**SMALL, "SPLIT": 4, "PINGPONG": 1, "CM": 2}),
}  # fmt: skip


def _plan(case, device):
    own = op("gemm")
    options = {"layout": case.get("layout", "nn"), "epilogue": case.get("epilogue", "none")}
    problem = own.problem((2304, 1544, 4096), case["dtype"], backend="cuda", **options)
    usable = [t for t in (*gemm.templates(), *generic.templates()) if t.backend == "cuda"]
    variant = derive(problem, own, usable).variant(case["variant"])
    config = {**{p.name: p.values[0] for p in variant.params}, **case["config"]}
    return lower(variant, config, problem, backends.get("cuda"), device)


@pytest.mark.parametrize("name", sorted(CASES))
def test_it_compiles_without_spills_and_without_serialised_products(name):
    backend = backends.get("cuda")
    device = backend.compile_only("sm_90a")
    plan = _plan(CASES[name], device)
    try:
        compiled = backend.compile(plan.kernels[0], device, timeout_s=60)
    except CompilerError as error:
        pytest.skip(str(error))
    assert (compiled.evidence["spill_stores"], compiled.evidence["warnings"]) == (0, "")


ON_HOST = ("first bulk nn", "first direct nt", "wide", "three consumers", "columns in vain", "swapped, tiny",
           "in turns", "cluster along M", "cluster of four", "cluster_split of 4, nt",
           "cluster_split_swapped of 2, nn")  # fmt: skip


def _bits(values):
    """Whole numbers of few bits as bfloat16 patterns."""
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def _rounded(values):
    u = np.asarray(values, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def _padded(values):
    """A copy whose rows lie further apart, amid NaNs, aligned for maps."""
    rows, columns = values.shape
    memory = np.full(rows * (pitch := -(-columns // 8) * 8 + 8) + 1024, 0x7FC1, np.uint16)
    start = (-memory.ctypes.data // 2) % 128 + 128
    inside = memory[start : start + rows * pitch].reshape(rows, pitch)[:, :columns]
    inside[...] = values
    return memory, inside


@pytest.mark.parametrize("name", ON_HOST)
def test_on_the_host_it_ends_and_is_exact_with_more_tiles_than_blocks_and_more_steps_than_stages(name):
    case = CASES[name]
    plan = _plan(case, backends.get("cuda").compile_only("sm_90a"))
    m, n, k = 200, 264, 600
    random, layout = np.random.default_rng(1), case.get("layout", "nn")
    a, b = random.integers(-4, 5, (m, k)), random.integers(-4, 5, (k, n))
    arrays = {
        "A": _padded(_bits(a.T if layout[0] == "t" else a)),
        "B": _padded(_bits(b.T if layout[1] == "t" else b)),
        "D": _padded(np.full((m, n), 0x7FC1, np.uint16)),
    }
    views = {
        name: launch.ArrayView(inside.ctypes.data, inside.shape, tuple(s // 2 for s in inside.strides), 2)
        for name, (_, inside) in arrays.items()
    }
    names = launch.names(plan, views, 132)
    assert launch.unmet(plan, names) is None
    assert hopper.run(plan.kernels[0], names, {name: v.address for name, v in views.items()}, {}, blocks=2) is None
    np.testing.assert_array_equal(arrays["D"][1], _rounded(a @ b))
    arrays["D"][1][...] = 0x7FC1
    assert (arrays["D"][0] == 0x7FC1).all(), "wrote outside of the output"


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(CASES))
def test_it_is_exact_on_whole_numbers(name, gpu):
    from hopper_case import run_case

    if gpu.cc_major != 9:
        pytest.skip("wgmma is Hopper's")
    passed, text = run_case(CASES[name])
    assert passed, text
