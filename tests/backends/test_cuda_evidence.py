"""What the compiler's log says, and which kernels it refuses: real kernels, real logs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kernsearch import backends
from kernsearch.backends.cuda import evidence
from kernsearch.errors import Rejected
from kernsearch.plan import KernelPlan, Launch

BACKEND = backends.get("cuda")
needs_nvrtc = pytest.mark.usefixtures("nvrtc")

# One multiply of a warpgroup, with a hole between it and its commit.
WGMMA = """\
extern "C" __global__ void __launch_bounds__(128, 1) run(float *out, long long a, long long b, int n) {
    float d[8] = {};
    for (int i = 0; i < n; i++) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                     "{%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, 1, 1, 1, 0, 0;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
                     : "l"(a), "l"(b));
        HOLE
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    for (int i = 0; i < 8; i++) out[threadIdx.x * 8 + i] = d[i];
}
"""
SPILLS = """\
extern "C" __global__ void __launch_bounds__(1024, 1) run(float *x, int n) {
    float v[KS_LIVE];
    #pragma unroll
    for (int i = 0; i < KS_LIVE; i++) v[i] = x[i * 1024 + threadIdx.x];
    for (int j = 0; j < n; j++) {
        #pragma unroll
        for (int i = 0; i < KS_LIVE; i++) v[i] = v[i] * v[(i * 7 + 3) % KS_LIVE] + x[j];
    }
    #pragma unroll
    for (int i = 0; i < KS_LIVE; i++) x[i * 1024 + threadIdx.x] = v[i];
}
"""
TWO = """\
extern "C" __global__ void pack(float *x) { x[threadIdx.x] = 1; }
extern "C" __global__ void run(float *x) {
    __shared__ float s[KS_N];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[KS_N - 1 - threadIdx.x];
}
"""


@pytest.fixture
def nvrtc() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="no cuda-bindings")


@pytest.fixture
def hopper():
    return BACKEND.compile_only("sm_90a")


def launch(entry: str = "run", block: str = "128", **options) -> Launch:
    return Launch(entry, ("1", "1", "1"), block, **options)


@pytest.fixture
def plan_of(tmp_path: Path):
    def make(text: str, *launches: Launch, **defines: int) -> KernelPlan:
        path = tmp_path / "run.cu"
        path.write_text(text)
        return KernelPlan("t", str(path), "", "run", "", defines, ("x",), ("M",), (), launches=launches or (launch(),))

    return make


def refused(plan, device) -> str:
    with pytest.raises(Rejected) as refusal:
        BACKEND.compile(plan, device)
    assert refusal.value.gate == "compile" and "\n" not in refusal.value.reason
    return refusal.value.reason


@needs_nvrtc
def test_wgmma_as_it_should_be_passes_without_warnings(plan_of, hopper):
    found = BACKEND.compile(plan_of(WGMMA.replace("HOLE", "")), hopper).evidence
    assert found["warnings"] == "" and found["registers"] > 8


@needs_nvrtc
def test_wgmma_that_the_compiler_serializes_is_refused_with_its_reason(plan_of, hopper):
    plan = plan_of(WGMMA.replace("HOLE", "d[0] += 1.0f;"))
    reason = refused(plan, hopper)
    assert "C75" in reason
    assert refused(plan, hopper) == reason  # from the cache too


@needs_nvrtc
def test_setmaxnreg_that_is_ignored_is_refused(plan_of, hopper):
    hole = 'asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");'
    text = WGMMA.replace("HOLE", hole).replace("__launch_bounds__(128, 1)", "")
    assert "C7508: setmaxnreg is ignored" in refused(plan_of(text), hopper)
    assert BACKEND.compile(plan_of(WGMMA.replace("HOLE", hole)), hopper)


@needs_nvrtc
def test_spills_are_evidence_and_refuse_nothing(plan_of, hopper):
    plan = plan_of(SPILLS, launch(block="1024"), LIVE=150)
    found = BACKEND.compile(plan, hopper).evidence
    assert found["spill_stores"] > 0 and found["spill_loads"] > 0 and found["stack_bytes"] > 0
    assert found["registers"] <= 64
    few = BACKEND.compile(plan_of(SPILLS, launch(block="1024"), LIVE=8), hopper).evidence
    assert (few["spill_stores"], few["spill_loads"], few["stack_bytes"]) == (0, 0, 0)


@needs_nvrtc
def test_each_kernel_of_a_cubin_has_its_own_numbers(plan_of, hopper):
    found = BACKEND.compile(plan_of(TWO, launch("pack"), launch(), N=256), hopper).evidence
    assert sorted(str(found["entries"]).split()) == ["pack", "run"]
    assert (found["shared_bytes"], found["shared_bytes.run"], found["shared_bytes.pack"]) == (1024, 1024, 0)
    assert found["registers"] == max(found["registers.run"], found["registers.pack"])


@needs_nvrtc
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (launch("other"), "no kernel 'other'"),
        (launch(block="2048"), "2048 threads in a block, at most 1024"),
        (launch(block="0"), "0 threads"),
        (launch(shared="232448"), "bytes of shared memory in a block, at most 232448"),
        (launch(cluster=(4, 4, 2)), "32 blocks in a cluster"),
    ],
)
def test_a_launch_beyond_the_limits_is_refused(plan_of, hopper, changed, words):
    assert words in refused(plan_of(TWO, changed, N=256), hopper)


@needs_nvrtc
def test_a_launch_at_the_limits_passes(plan_of, hopper):
    at = launch(block="1024", shared="232448 - 4 * 256", cluster=(2, 4, 2))
    assert BACKEND.compile(plan_of(TWO, at, N=256), hopper)


@needs_nvrtc
def test_the_same_cubin_may_fit_one_device_and_not_another(plan_of):
    wide = launch(shared="160000")
    assert BACKEND.compile(plan_of(TWO, wide, N=256), BACKEND.compile_only("sm_80"))
    assert "at most 101376" in refused(plan_of(TWO, wide, N=256), BACKEND.compile_only("sm_86"))
    assert "clusters need sm_90" in refused(
        plan_of(TWO, launch(cluster=(2, 1, 1)), N=256), BACKEND.compile_only("sm_86")
    )


def test_what_only_a_call_knows_is_not_judged(hopper):
    plan = KernelPlan(
        "t", "t.cu", "", "run", "", {}, (), (), (), launches=(launch(block="32 * M", shared="N * ITEMSIZE"),)
    )
    said = {"registers": 255, "shared_bytes": 0, "entries": "run"}
    assert evidence.unlaunchable(plan, said, hopper) is None


def test_more_registers_than_a_block_may_have_are_refused(hopper):
    plan = KernelPlan("t", "t.cu", "", "run", "", {}, (), (), (), launches=(launch(block="384"),))
    said = {"registers": 168, "shared_bytes": 0, "entries": "run"}
    assert evidence.unlaunchable(plan, said, hopper) is None
    assert "registers in a block, at most 65536" in str(evidence.unlaunchable(plan, {**said, "registers": 176}, hopper))
    fewer = msgspec.structs.replace(plan, launches=(launch(block="256"),))
    assert evidence.unlaunchable(fewer, {**said, "registers": 255}, hopper) is None


def test_a_log_with_functions_that_are_not_inlined_counts_them_with_their_kernel():
    log = """\
ptxas info    : (C7511) Potential Loss: wgmma.mma_async instructions are serialized due to this in function 'one'
ptxas info    : Compiling entry function 'one' for 'sm_90a'
ptxas info    : Function properties for one
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 2 barriers, 8 bytes cumulative stack size, 64 bytes smem, 360 bytes cmem[0]
ptxas info    : Function properties for helper
ptxas         .     16 bytes stack frame, 0 bytes spill stores, 12 bytes spill loads
ptxas info    : Compiling entry function 'two' for 'sm_90a'
ptxas info    : Used 8 registers, 360 bytes cmem[0]
"""
    found = evidence.read(log)
    numbers = {key: found[f"{key}.one"] for key in evidence.NUMBERS}
    assert numbers == {
        "registers": 40, "spill_stores": 4, "spill_loads": 12, "shared_bytes": 64, "stack_bytes": 16, "barriers": 2,
    }  # fmt: skip
    assert found["registers.two"] == 8 and found["entries"] == "one two" and found["warnings"] == "C7511"
    assert found["refusal"] == "C7511: wgmma instructions are serialized (this)"


def test_a_log_of_nothing_has_no_entries():
    assert evidence.read("")["entries"] == "" and evidence.read("")["registers"] == 0
    assert evidence.first_error("", 7) == "NVRTC ended with error 7"
