"""Comparing on a GPU: what can be refused without one, and real processes where there is one."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest
from kernsearch.spaces.gemm import cuda_peers

import kernsearch.peers as peers
from kernsearch import backends, registry
from kernsearch.device import Device
from kernsearch.errors import DeviceError, PeerError
from kernsearch.peers.peer import AGREE, agree, check, peers_of

SHAPE = (136, 200, 96)
PEERS = ("torch", "torch-compile", "cupy", "triton")


def gemm(shape: tuple[int, ...] = SHAPE, dtype: str = "bfloat16", op: str = "gemm", **options: Any) -> Any:
    return registry.problem(op, shape, dtype, backend="cuda", **options)


@pytest.mark.parametrize("op", ["gemm", "bmm"])
def test_each_backend_has_its_own_libraries(op: str) -> None:
    assert tuple(peers_of(op, "cuda")) == PEERS
    assert "numpy" not in peers_of(op, "cuda") and "cupy" not in peers_of(op)
    with pytest.raises(PeerError, match=r"peer 'numpy': gemm compares with torch, .* on cuda"):
        check(gemm(), ["numpy"], "cuda")


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_a_library_that_is_not_installed_is_named() -> None:
    with pytest.raises(PeerError, match="pip install torch"):
        check(gemm(), ["torch"], "cuda")


def test_the_triton_kernel_is_in_the_source_tree_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tree = cuda_peers._triton_file()
    if not tree.is_file():
        pytest.skip("not run from the source tree")
    assert cuda_peers._triton_needs(gemm()) == ("triton", "torch")
    import kernsearch

    monkeypatch.setattr(kernsearch, "__file__", str(tmp_path / "kernsearch" / "__init__.py"))
    with pytest.raises(PeerError, match=r"benchmarks/triton_gemm.py of the source tree.*pip install -e"):
        check(gemm(), ["triton"], "cuda")


def test_results_may_differ_by_the_rounding_of_their_dtype_and_no_more() -> None:
    for dtype, allowed in {**AGREE, "float32": 1e-3}.items():
        agree(gemm(dtype=dtype), "kernsearch", [1.0, -2.0], "torch", [1.0, -2.0 * (1 - allowed / 2)])
        with pytest.raises(PeerError, match="computes something else"):
            agree(gemm(dtype=dtype), "kernsearch", [1.0, -2.0], "torch", [1.0, -2.0 * (1 - 2 * allowed)])


def test_without_a_gpu_a_comparison_says_so_in_one_line() -> None:
    try:
        backends.get("cuda").device(0)
    except DeviceError as error:
        with pytest.raises(DeviceError) as caught:
            peers.bench("gemm", shape=SHAPE, against=["torch"], device="cuda")
        assert str(caught.value) == str(error) and "\n" not in str(error)
    else:
        pytest.skip("there is a GPU")


# with a GPU


def _there(name: str) -> None:
    for package in peers_of("gemm", "cuda")[name].needs(gemm()):
        pytest.importorskip(package)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNSEARCH_CACHE", str(folder))
        yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize(
    "problem", [gemm(), gemm((2, 72, 40, 64), op="bmm"), gemm(dtype="float32")], ids=lambda p: p.key
)
def test_a_library_computes_what_we_do(gpu: Device, home: Path, name: str, problem: Any) -> None:
    """`bench_problems` refuses results that do not agree."""
    _there(name)
    found = peers.bench_problems([problem], [name], device=gpu, rounds=3)
    (row,) = found["results"]
    told = row["peers"][name]
    assert 0 < told["ratio_ci"][0] <= told["ratio"] <= told["ratio_ci"][1]
    assert told["library"].startswith(name.partition("-")[0])
    assert row["copies"] > 1 and row["launches"] % row["copies"] == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", PEERS)
def test_layouts_and_epilogues_are_the_same_computation(gpu: Device, home: Path, name: str) -> None:
    _there(name)
    wanted = [("nt", "bias,gelu_tanh"), ("tn", "bias,relu,residual"), ("tt", "gelu"), ("nt", "silu,residual")]
    problems = [gemm((67, 88, 45), layout=layout, epilogue=epilogue) for layout, epilogue in wanted]
    found = peers.bench_problems(problems, [name], device=gpu, rounds=3)
    assert all("ratio" in row["peers"][name] for row in found["results"])


@pytest.mark.gpu
def test_a_library_against_itself_takes_as_long(gpu: Device, home: Path) -> None:
    """The A/A control runs; how near to 1 it comes is a figure, not a test."""
    _there("torch")
    found = peers.bench_problems([gemm()], ["torch"], device=gpu, rounds=12, ours="torch")
    assert found["results"][0]["ours"]["called"] == "torch"


@pytest.mark.gpu
def test_warm_caches_take_one_set_of_operands(gpu: Device, home: Path) -> None:
    _there("torch")
    found = peers.bench_problems([gemm()], ["torch"], device=gpu, rounds=3, warm=True)
    assert found["cache"] == "warm" and found["results"][0]["copies"] == 1


@pytest.mark.gpu
def test_what_comes_before_the_first_result_has_rows_of_its_own(gpu: Device, home: Path) -> None:
    _there("torch")
    found = peers.bench_problems([gemm()], ["torch"], device=gpu, rounds=3, end_to_end=True)
    (row,) = found["results"]
    steps = {"library and context", "operands to device", "first call", "result to host"}
    assert steps <= set(row["peers"]["torch"]["first"])
    assert steps | {"compile", "module load"} <= set(row["ours"]["first"])
    assert all(seconds > 0 for seconds in row["ours"]["first"].values())


@pytest.mark.gpu
def test_the_default_candidate_can_stand_for_us(gpu: Device, home: Path) -> None:
    _there("torch")
    found = peers.bench_problems([gemm()], ["torch"], device=gpu, rounds=3, ours="default")
    assert found["results"][0]["ours"]["hit"] == "default"


@pytest.mark.gpu
def test_a_library_that_fails_costs_its_own_row(gpu: Device, home: Path) -> None:
    """Nobody can hold the result of the large problem; the small one after it is timed."""
    _there("torch")
    small, large = gemm(), gemm((400000, 400000, 64))
    found = peers.bench_problems([large, small], ["torch"], device=gpu, rounds=3, keep_going=True)
    assert "error" in found["results"][0]
    assert "ratio" in found["results"][1]["peers"]["torch"]
