"""Claims on softmax agree with what is known: elements read and written by the textbook, and by what is fused."""

from __future__ import annotations

import pytest

from kernsearch import registry
from kernsearch.claims import claims
from kernsearch.derive import derive

M, N = 37, 512
SIZES = {"M": M, "N": N, "ITEMSIZE": 4}


def derivation(op: str, backend: str, **options):
    made = registry.op(op)
    problem = made.problem((M, N), "float32", backend=backend, **options)
    return derive(problem, made, registry.templates(backend))


def moved(variant) -> tuple[int, int]:
    config = {param.name: param.values[-1] for param in variant.params}
    config["SPLIT"] = 4
    told = claims(variant, SIZES, config)
    return told.reads["global"], told.writes["global"]


def test_the_textbook_reads_five_matrices_and_writes_three():
    root = derivation("softmax", "cpu").root
    told = claims(root, SIZES)
    assert told.reads["global"] == 5 * M * N + 2 * M
    assert told.writes["global"] == 3 * M * N + 2 * M
    assert told.launches == 5


@pytest.mark.parametrize(
    "backend, name",
    [("cpu", "row_streamed"), ("cuda", "warp_rows"), ("cuda", "block_row"),
     ("cuda", "shared_row"), ("cuda", "cluster_row")],
)  # fmt: skip
@pytest.mark.parametrize("result", ["softmax", "log"])
def test_what_keeps_the_row_reads_one_matrix_and_writes_one(backend, name, result):
    variant = derivation("softmax", backend, result=result).variant(name)
    assert moved(variant) == (M * N, M * N)
    rules = [step.rule for step in variant.path]
    assert "merge_reductions" in rules and "fuse_epilogues" in rules
    assert ("split_reduction" in rules) == (name == "cluster_row")


def test_passes_over_a_row_that_nothing_keeps_count_each():
    variant = derivation("softmax", "cpu").variant("row_passes")
    assert moved(variant) == (2 * M * N, M * N)


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_the_online_way_reads_the_row_twice(backend):
    variant = derivation("softmax", backend).variant("row_online")
    config = {param.name: param.values[0] for param in variant.params}
    told = claims(variant, SIZES, {**config, "KC": 128, "BK": 128})
    assert (told.reads["global"], told.writes["global"]) == (2 * M * N, M * N)


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_slabs_cost_another_read_and_what_lies_between(backend):
    variant = derivation("softmax", backend).variant("row_slabs+spread")
    reads, writes = moved(variant)
    assert writes == M * N + 2 * 4 * M
    assert reads >= 2 * M * N + 2 * 4 * M


@pytest.mark.parametrize(
    "op, suffix, inputs", [("softmax_backward", "_product", 2), ("log_softmax_backward", "_sum", 2)]
)
def test_the_fused_backward_pass_reads_two_matrices_and_writes_one(op, suffix, inputs):
    variant = derivation(op, "cpu").variant(f"row_streamed{suffix}")
    assert moved(variant) == (inputs * M * N, M * N)


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_derivations_stay_small_and_their_steps_are_rules_that_serve_gemm_too(backend):
    for options in ({}, {"prologue": "scale,bias,mask"}, {"result": "log"}):
        assert len(derivation("softmax", backend, **options).graph) < 60
    fired = {data["step"].rule for *_, data in derivation("softmax", backend).graph.edges(data=True)}
    gemm = registry.op("gemm")
    product = gemm.problem((64, 64, 64), "float32", backend=backend, epilogue="bias,gelu")
    also = {d["step"].rule for *_, d in derive(product, gemm, registry.templates(backend)).graph.edges(data=True)}
    assert {"fuse_maps", "fuse_epilogues", "split_reduction"} <= fired & also
