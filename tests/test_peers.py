"""Comparing with other libraries: real processes, small shapes, no claim about who is faster."""

import importlib.util
import os
import signal
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from command import know_rates
from kernsearch.spaces.gemm.peers import PEERS

import kernsearch.peers as peers
from kernsearch import registry
from kernsearch.device import Device
from kernsearch.errors import DeviceError, PeerError, ProblemError
from kernsearch.peers.bench import HANDICAPS
from kernsearch.peers.child import aligned, projection
from kernsearch.peers.host import Child
from kernsearch.peers.peer import agree, check

NUMPY, TORCH, MATMUL = PEERS
SCIPY = importlib.util.find_spec("scipy") is not None
SHAPE = (17, 23, 31)


def gemm(shape=SHAPE, **options):
    return registry.problem("gemm", shape, **options)


def prepared(peer, problem, *, alpha=1.0, beta=1.0):
    """(result of the peer, inputs, the float64 reference by the op's own textbook)."""
    op = registry.op("gemm")
    inputs, scalars = op.inputs[0].make(problem, np.random.default_rng(5))
    scalars = {**scalars, **{k: v for k, v in {"alpha": alpha, "beta": beta}.items() if k in {"alpha", *scalars}}}
    if "C" in inputs:
        scalars["beta"] = beta
    ready = peer.prepare(problem, inputs, scalars, 1)
    ready.output[...] = np.nan
    ready.call()
    first = ready.output.copy()
    ready.call()  # in place steps must not eat into the inputs
    assert np.array_equal(first, ready.output)
    return first, op.textbook(problem, inputs, scalars)["D"]


EPILOGUES = ("none", "bias", "relu", "bias,silu", "bias,gelu_tanh,residual", "residual", "gelu")


@pytest.mark.parametrize(("layout", "epilogue"), [*product(("nn", "tt"), EPILOGUES), ("nt", "bias"), ("tn", "bias")])
def test_what_numpy_is_timed_at_is_the_same_computation(layout, epilogue):
    problem = gemm(layout=layout, epilogue=epilogue)
    if not all(importlib.util.find_spec(package) for package in NUMPY.needs(problem)):
        pytest.skip("NumPy alone has no erf")
    for alpha, beta in ((1.0, 1.0), (0.5, -2.0), (2.0, 0.0)):
        result, expected = prepared(NUMPY, problem, alpha=alpha, beta=beta)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_what_torch_is_timed_at_is_the_same_computation(epilogue):
    pytest.importorskip("torch")
    for alpha, beta in ((1.0, 1.0), (0.5, -2.0), (2.0, 0.0)):
        result, expected = prepared(TORCH, gemm(layout="nt", epilogue=epilogue), alpha=alpha, beta=beta)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_activations_of_large_values_do_not_overflow():
    problem = gemm(epilogue="silu")
    result, expected = prepared(NUMPY, problem, alpha=100.0)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-3)


# bad requests


def test_a_problem_that_memory_does_not_hold_is_refused_before_any_library_starts():
    with pytest.raises(DeviceError, match=r"its arrays and their float64 reference take .* GiB"):
        peers.bench("gemm", shape=(1000000, 1000000, 1000000), device="cpu")


def test_an_unknown_peer_is_named_with_what_there_is():
    with pytest.raises(PeerError, match=r"peer 'blas': gemm compares with numpy, torch"):
        peers.bench("gemm", shape=SHAPE, against=["blas"], device="cpu")


def test_another_way_of_calling_ourselves_is_no_peer():
    with pytest.raises(PeerError, match="peer 'matmul'"):
        check(gemm(), ["matmul"])


def test_a_peer_that_is_not_installed_is_named_with_its_package():
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("torch is installed")
    with pytest.raises(PeerError, match="pip install torch"):
        peers.bench("gemm", shape=SHAPE, against=["numpy", "torch"], device="cpu")


@pytest.mark.skipif(SCIPY, reason="scipy is installed")
def test_a_peer_that_lacks_a_package_for_this_epilogue_names_it():
    with pytest.raises(PeerError, match="pip install scipy"):
        check(gemm(epilogue="gelu"), ["numpy"])


def test_nothing_to_compare_with_is_an_error():
    with pytest.raises(PeerError, match="want numpy, torch"):
        peers.bench("gemm", shape=SHAPE, against=[], device="cpu")


def test_too_few_rounds_and_devices_without_peers_are_refused():
    with pytest.raises(ProblemError, match="at least 3"):
        peers.bench("gemm", shape=SHAPE, rounds=2, device="cpu")
    with pytest.raises(PeerError, match="none on abacus"):
        peers.bench_problems([gemm()], ["numpy"], device=Device("abacus", 0, "x", "x", "x", {}))
    with pytest.raises(ProblemError, match="--end-to-end"):
        peers.bench("gemm", shape=SHAPE, device="cpu", end_to_end=True)
    with pytest.raises(ProblemError, match="op 'gem'"):
        peers.bench("gem", shape=SHAPE, device="cpu")


# real runs


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNSEARCH_CACHE", str(folder))
        yield folder


def test_our_plan_and_numpy_are_compared(home):
    result = peers.bench("gemm", shape=SHAPE, against=["numpy"], device="cpu", rounds=12)
    (row,) = result["results"]
    assert row["problem"] == gemm().key
    assert row["ours"]["hit"] in ("exact", "compatible", "nearest", "default")
    assert 0 < row["ours"]["ci_s"][0] <= row["ours"]["median_s"] <= row["ours"]["ci_s"][1]
    peer = row["peers"]["numpy"]
    assert 0 < peer["ratio_ci"][0] <= peer["ratio"] <= peer["ratio_ci"][1] < float("inf")
    assert result["geomean"] == {"numpy": pytest.approx(peer["ratio"])}
    assert peer["library"].startswith(f"numpy {np.__version__}")


def test_the_public_function_can_stand_for_us_with_warm_caches(home):
    result = peers.bench("gemm", shape=SHAPE, device="cpu", rounds=3, warm=True, ours="matmul", epilogue="bias,relu")
    assert result["cache"] == "warm"
    assert result["results"][0]["ours"]["called"] == "matmul"


def test_the_geometric_mean_is_over_all_problems():
    from kernsearch import backends

    problems = [gemm(), gemm((8, 8, 8))]
    where = backends.resolve("cpu")[1]
    result = peers.bench_problems(problems, ["numpy"], device=where, rounds=3, ours="numpy")
    one, two = (row["peers"]["numpy"]["ratio"] for row in result["results"])
    assert result["geomean"]["numpy"] == pytest.approx((one * two) ** 0.5)


def test_the_default_candidate_is_compared_as_if_there_were_no_record(tmp_path, monkeypatch):
    import kernsearch as ks
    from kernsearch import backends

    monkeypatch.setenv("KERNSEARCH_CACHE", str(tmp_path))
    know_rates(tmp_path)
    ks.tune("gemm", shape=SHAPE, device="cpu", trials=2, timeout=20)
    where = backends.resolve("cpu")[1]
    found = {
        ours: peers.bench_problems([gemm()], ["numpy"], device=where, rounds=3, ours=ours)["results"][0]["ours"]
        for ours in ("kernsearch", "default")
    }
    assert found["kernsearch"]["hit"] == "exact" and found["default"]["hit"] == "default"


def test_libraries_that_compute_something_else_are_not_compared():
    agree(gemm(), "kernsearch", [1.0, -2.0], "numpy", [1.0, -2.0005])
    for other in ([1.0, -2.1], [1.0, float("nan")]):
        with pytest.raises(PeerError, match="computes something else"):
            agree(gemm(), "kernsearch", [1.0, -2.0], "numpy", other)


def test_a_projection_sees_a_change_in_any_column():
    output = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    before = projection(output, 0)
    for column in range(7):
        changed = output.copy()
        changed[2, column] += 1
        assert not np.allclose(projection(changed, 0), before)


def test_arrays_start_on_a_cache_line():
    for shape in ((1,), (3, 5), (64, 64)):
        copy = aligned(np.ones(shape, np.float32))
        assert copy.ctypes.data % 64 == 0
        assert copy.shape == shape and copy.flags.c_contiguous and (copy == 1).all()


def test_a_process_that_dies_is_reported_with_its_cause():
    with pytest.raises(PeerError, match="numpy was killed by signal 9"), Child("numpy", gemm(), {}, 1, 0) as child:
        child.prepare()
        os.kill(child._process.pid, signal.SIGKILL)
        child.turn(1, 1, 0)


def test_a_process_ends_with_its_host():
    with Child("numpy", gemm(), {}, 1, 0) as child:
        child.prepare()
        process = child._process
        assert process.poll() is None
    assert process.poll() is not None


def test_samples_are_per_call_and_as_many_as_asked():
    with Child("numpy", gemm(), {}, 1, 0) as child:
        child.prepare()
        samples, seconds = child.turn(4, 3, 0)
    assert len(samples) == 4
    assert all(0 < s.seconds < seconds for s in samples)


def test_variables_are_set_before_the_library_is_loaded_and_handicaps_are_taken_away(monkeypatch):
    def library(environment):
        with Child("numpy", gemm(), environment, 1, 0) as child:
            return child.prepare()["library"]

    ask = "import numpy; from kernsearch.spaces.gemm.peers import openblas; print(openblas())"

    def alone(**variables):
        kept = {name: value for name, value in os.environ.items() if name not in HANDICAPS}
        return subprocess.run(
            [sys.executable, "-c", ask], env={**kept, **variables}, capture_output=True, text=True
        ).stdout

    if alone() == alone(OPENBLAS_CORETYPE="Haswell"):
        pytest.skip("NumPy's BLAS does not choose other kernels by OPENBLAS_CORETYPE here")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert library(dict.fromkeys(HANDICAPS)).endswith(alone().strip())
    monkeypatch.delenv("OPENBLAS_CORETYPE")
    assert library({"OPENBLAS_CORETYPE": "Haswell"}).endswith("Haswell")
