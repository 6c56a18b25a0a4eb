"""The model's arithmetic on cases that can be worked out by hand, and the order in which it ranks."""

import json
import math
from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import pytest

import kernsearch.backends as backends
import kernsearch.model as model
import kernsearch.model.ceilings as ceilings
from kernsearch import registry
from kernsearch.claims import claims
from kernsearch.derive import derive
from kernsearch.device import Device
from kernsearch.feasible import FeasibleSpace
from kernsearch.model.nest import Loop, Nest, Operand, orders
from kernsearch.model.ranking import ENUMERATED

DEVICE = Device(
    "cpu",
    0,
    "a common one",
    "x86_64-avx512",
    "cpu-common-avx512-4t",
    {
        "threads": 4, "cores": 4, "isa": "avx512", "vector_bytes": 64, "vector_registers": 32, "l1d_bytes": 32 << 10,
        "l2_bytes": 1 << 20, "l3_bytes": 32 << 20, "line_bytes": 64, "memory_bytes": 16 << 30,
    },
)  # fmt: skip
CEILINGS = ceilings.guess(DEVICE)


def sizes(shape, threads=4):
    return {**dict(zip("MNK", shape, strict=True)), "THREADS": threads, "ITEMSIZE": 4}


def derived(shape, **options):
    return derive(registry.problem("gemm", shape, **options), registry.op("gemm"), registry.templates("cpu"))


def space_of(variant, shape):
    return FeasibleSpace(variant.params, variant.constraints, DEVICE, sizes(shape))


def best(variant, shape, **how):
    return model.rank(variant, space_of(variant, shape), DEVICE, sizes(shape), CEILINGS, **how)


def product_nest(m, n, k, *, mc=16.0, nc=16.0, order=("m", "n"), packed=False):
    tiles = {"m": mc, "n": nc}
    return Nest(
        tuple(Loop((axis,), np.array([tiles[axis]]), "block") for axis in order),
        (
            Operand("A", ("m", "k"), 4, packed=packed),
            Operand("B", ("k", "n"), 4, packed=packed),
            Operand("D", ("m", "n"), 4, written=True),
        ),
        {"m": np.array(float(m)), "n": np.array(float(n)), "k": np.array(float(k))},
    )


# what loops move


def test_a_level_that_holds_everything_takes_each_array_in_once():
    moved = product_nest(64, 48, 32).traffic(1e9)
    assert moved == 4 * (64 * 32 + 32 * 48 + 2 * 64 * 48)


def test_a_level_that_holds_a_block_takes_operands_in_once_a_block():
    block = 4 * (16 * 32 + 32 * 16 + 16 * 16)
    moved = product_nest(64, 48, 32).traffic(block)
    a_once_a_row_of_blocks, b_once_a_block = 64 * 32, 32 * 48 * (64 / 16)
    assert moved == 4 * (a_once_a_row_of_blocks + b_once_a_block + 2 * 64 * 48)


def test_without_room_for_a_block_it_is_streamed_all_the_same():
    assert product_nest(64, 48, 32).traffic(0.0) == product_nest(64, 48, 32).traffic(4 * (2 * 16 * 32 + 16 * 16))


def test_blocks_of_several_threads_need_room_for_each():
    block = 4 * (16 * 32 + 32 * 16 + 16 * 16)
    nest = product_nest(640, 480, 320)
    assert nest.traffic(2 * block, copies=1) <= nest.traffic(2 * block, copies=4)


def test_ragged_tiles_count_as_tiles():
    assert product_nest(17, 16, 8).trips[0] == 2


def test_packing_copies_what_the_loops_around_it_ask_for():
    moved = product_nest(64, 48, 32, order=("n", "m"), packed=True).packing()
    b_once, a_for_each_block_of_columns = 32 * 48, 64 * 32 * (48 / 16)
    assert moved == 4 * (b_once + a_for_each_block_of_columns)


def test_orders_keep_every_loop_and_never_let_an_inner_one_out():
    loops = [
        Loop(("m",), np.array([16.0]), "block"),
        Loop(("n",), np.array([16.0]), "block"),
        Loop(("k",), np.array([8.0]), "serial", reduced=True),
        Loop(("m",), np.array([4.0]), "inner"),
        Loop(("n",), np.array([4.0]), "inner"),
    ]
    found = list(orders(loops))
    assert len(found) == len(set(map(lambda order: tuple(map(id, order)), found))) == 8
    for order in found:
        assert sorted(map(id, order)) == sorted(map(id, loops))
        assert [loop.kind for loop in order][-2:] == ["inner", "inner"]
        assert order[0].kind == "block"


def test_many_configs_at_once_are_each_what_they_are_alone():
    variant = derived((100, 200, 300)).variant("register_tiled")
    configs = [config for _, config in best(variant, (100, 200, 300))][:20]
    together = model.predict_all(variant, configs, DEVICE, sizes((100, 200, 300)), CEILINGS)
    alone = [model.predict(variant, config, DEVICE, sizes((100, 200, 300)), CEILINGS) for config in configs]
    assert [p.seconds for p in together] == pytest.approx([p.seconds for p in alone])
    assert [p.bound for p in together] == [p.bound for p in alone]


# predictions


@pytest.mark.parametrize("shape", [(2304, 1544, 4096), (1, 4096, 4096), (127, 129, 4097), (1, 1, 1)])
@pytest.mark.parametrize("epilogue", ["none", "bias,gelu,residual"])
def test_every_variant_gets_a_finite_prediction_that_its_parts_explain(shape, epilogue):
    for variant in derived(shape, epilogue=epilogue).variants[:20]:
        configs = list(islice(space_of(variant, shape).iterate(), 5))
        for prediction in model.predict_all(variant, configs, DEVICE, sizes(shape), CEILINGS):
            assert 0 < prediction.seconds < math.inf
            assert max(prediction.parts.values()) <= prediction.seconds * 1.2
            assert prediction.seconds <= sum(prediction.parts.values())
            assert prediction.parts[prediction.bound] == max(prediction.parts.values())
            assert prediction.launches == len(variant.kernels)
            assert prediction.flops >= 2 * math.prod(shape)


def test_no_prediction_beats_the_ceilings():
    shape = (512, 512, 512)
    derivation = derived(shape)
    for name in ("register_tiled", "unpacked", "cache_tiled", "contraction"):
        prediction = best(derivation.variant(name), shape)[0][0]
        assert prediction.flops / prediction.seconds <= CEILINGS.flops["float32"]
        assert prediction.bytes >= 4 * 3 * 512 * 512


def test_work_and_least_traffic_agree_with_the_walk_that_counts_every_loop():
    shape = (512, 384, 256)
    for name in ("register_tiled", "split_k+combine", "register_tiled+map"):
        variant = derived(shape).variant(name)
        prediction, config = best(variant, shape)[0]
        counted = claims(variant, sizes(shape), config)
        assert prediction.flops == pytest.approx(counted.flops, rel=0.02)
        # what a cache that holds everything takes in is the least a kernel can move; writes count twice
        least = sum(variant.partition.elements(p, {**sizes(shape), **config}) * 4 for k in variant.partition.kernels
                    for p in (*k.reads, *k.outputs, *k.outputs))  # fmt: skip
        assert prediction.bytes == pytest.approx(least, rel=0.02)


def test_more_work_never_takes_less_time_and_more_threads_never_more():
    variant = derived((512, 512, 512)).variant("register_tiled")
    config = best(variant, (512, 512, 512))[0][1]
    times = [
        model.predict(variant, config, DEVICE, sizes((512, 512, k)), CEILINGS).seconds for k in (256, 512, 1024, 4096)
    ]
    assert times == sorted(times)
    by_threads = [
        model.predict(variant, config, DEVICE, sizes((512, 512, 512), threads), CEILINGS).seconds
        for threads in (1, 2, 4)
    ]
    assert by_threads == sorted(by_threads, reverse=True)


def test_the_naive_kernel_never_ranks_before_one_with_register_tiles():
    for shape in ((512, 512, 512), (64, 4096, 4096), (96, 96, 96)):
        derivation = derived(shape)
        naive, tiled = (
            best(derivation.variant(name), shape)[0][0].seconds for name in ("contraction", "register_tiled")
        )
        assert tiled < naive / 4


def test_a_fused_epilogue_ranks_before_a_separate_one():
    shape = (1000, 1000, 1000)
    derivation = derived(shape, epilogue="bias,relu")
    fused, separate = (
        best(derivation.variant(name), shape)[0][0].seconds for name in ("register_tiled", "register_tiled+map+map+map")
    )
    assert fused < separate


def test_a_small_output_with_a_long_sum_is_split_when_there_are_many_threads():
    shape = (28, 32, 30000)
    crowd = replace(DEVICE, facts={**DEVICE.facts, "threads": 64})
    many = {**sizes(shape), "THREADS": 64}
    quick = {name: 1e13 for name in CEILINGS.read}
    rates = replace(ceilings.guess(crowd), read=quick, read_one=quick)  # arithmetic decides
    derivation = derived(shape)

    def seconds(name):
        variant = derivation.variant(name)
        space = FeasibleSpace(variant.params, variant.constraints, crowd, many)
        return model.rank(variant, space, crowd, many, rates)[0][0].seconds

    assert seconds("split_k+combine") < 0.7 * seconds("register_tiled")


def test_a_register_tile_without_a_hook_is_judged_by_its_registers():
    variant = derived((512, 512, 512)).variant("register_tiled")
    plain = replace(variant, templates=tuple(replace(t, efficiency=None) for t in variant.templates))
    config = {"MC": 96, "NC": 512, "KC": 256, "KU": 2}

    def seconds(mr, nr):
        wanted = {**config, "MR": mr, "NR": nr}
        return model.predict(plain, wanted, DEVICE, sizes((512, 512, 512)), CEILINGS).parts["compute"]

    assert seconds(8, 32) < seconds(2, 16)  # too few sums to hide latency
    assert seconds(8, 32) < seconds(16, 32)  # more sums than registers
    assert seconds(8, 32) < seconds(8, 24)  # half a vector of each row is empty


# ranking


def test_a_ranking_is_sorted_feasible_repeatable_and_not_all_the_same():
    shape = (2304, 1544, 4096)
    variant = derived(shape).variant("register_tiled")
    ranked = best(variant, shape, seed=3)
    assert [(p.seconds, c) for p, c in ranked] == [(p.seconds, c) for p, c in best(variant, shape, seed=3)]
    assert all(a[0].seconds <= b[0].seconds for a, b in pairwise(ranked))
    assert all(space_of(variant, shape).contains(config) is None for _, config in ranked)
    for index, (_, config) in enumerate(ranked):
        for _, other in ranked[:index]:
            assert sum(config[name] != other[name] for name in config) >= 2


def test_a_large_space_is_searched_nearly_as_well_as_a_small_one():
    shape = (500, 700, 900)
    variant = derived(shape).variant("register_tiled")
    whole = space_of(variant, shape)
    found = best(variant, shape)[0][0].seconds
    everything = model.predict_all(variant, list(whole.iterate()), DEVICE, sizes(shape), CEILINGS)
    assert len(everything) > ENUMERATED
    assert found <= 1.01 * min(p.seconds for p in everything)


def test_an_empty_space_has_no_ranking():
    shape = (64, 64, 64)
    variant = derived(shape).variant("register_tiled")
    empty = FeasibleSpace(
        [replace(p, values=(10**6,)) for p in variant.params], variant.constraints, DEVICE, sizes(shape)
    )
    assert model.rank(variant, empty, DEVICE, sizes(shape), CEILINGS) == []


# ceilings


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path))
    return tmp_path


def test_ceilings_of_this_machine_are_rates_that_can_be_true(home):
    backend, device = backends.resolve("cpu")
    found = ceilings.of(backend, device)
    assert found.measured
    for rates in (found.flops, found.flops_one, found.read, found.read_one):
        assert all(1e6 < rate < 1e15 for rate in rates.values())
    assert all(found.flops[name] >= found.flops_one[name] for name in found.flops)
    assert {"l1", "l2", "memory"} <= set(found.read)
    assert found.read["l1"] > found.read["memory"]
    assert 0 < found.launch_s < 1
    assert 0 <= found.parallel_s < 1


def test_kept_ceilings_are_used_and_damaged_ones_measured_anew(home):
    backend, device = backends.resolve("cpu")
    path = home / "ceilings" / f"{device.key}.json"
    path.parent.mkdir()
    known = ceilings.guess(device)
    path.write_text(json.dumps({**known.__dict__, "copy": 123.0}))
    assert ceilings.of(backend, device).copy == 123.0
    for damage in (
        "",
        "{",
        "[]",
        "{}",
        json.dumps({**known.__dict__, "copy": -1}),
        json.dumps({**known.__dict__, "schema": 0}),
    ):
        path.write_text(damage)
        assert ceilings._read(path) is None


def test_without_a_compiler_ceilings_are_guessed_and_not_kept(home, monkeypatch):
    backend, device = backends.resolve("cpu")
    monkeypatch.setenv("KERNSEARCH_CC", str(home / "no-such-compiler"))
    found = ceilings.of(backend, device)
    assert not found.measured
    assert not (home / "ceilings").exists()
