import pytest

from kernsearch import backends
from kernsearch.backends.cpu import evidence

TILE = """\
#include "kernsearch.h"
#define W (KS_VECTOR_BYTES / 4)
typedef float vector __attribute__((vector_size(KS_VECTOR_BYTES), aligned(4), may_alias));

static void pack(const float *restrict a, float *restrict b, int64_t n) {
    for (int64_t i = 0; i < n; i++) b[i] = a[i];
}

void run(const ks_call *call) {
    const float *a = call->buffers[0], *b = call->buffers[1];
    vector sum[KS_MR][KS_NV] = {0};
    pack(a, call->buffers[3], call->sizes[1]);
    for (int64_t k = 0; k < call->sizes[0]; k++) {
        _Pragma("GCC unroll 64") for (int i = 0; i < KS_MR; i++) {
            _Pragma("GCC unroll 64") for (int j = 0; j < KS_NV; j++) {
                sum[i][j] += a[k * KS_MR + i] * *(const vector *)(b + (k * KS_NV + j) * W);
            }
        }
    }
    for (int i = 0; i < KS_MR; i++) {
        for (int j = 0; j < KS_NV; j++) *(vector *)((float *)call->buffers[2] + (i * KS_NV + j) * W) = sum[i][j];
    }
}
"""
SCALAR = """\
#include "kernsearch.h"
void run(const ks_call *call) {
    const float *a = call->buffers[0];
    float x = 0;
    for (int64_t i = 0; i < call->sizes[0]; i++) x = x * a[i] + 1;
    *(float *)call->buffers[1] = x;
}
"""
ARM = """\
\t.type\trun,@function
run:
\tstp\tx29, x30, [sp, #-16]!
.LBB0_1:                                // outer
\tldr\tq7, [sp, #64]
.LBB0_2:                                // =>This Inner Loop Header
\tldp\tq1, q0, [x11], #32
\tldr\tq5, [sp, #32]                   // 16-byte Reload
\tfmla\tv5.4s, v3.4s, v4.4s
\tfmla\tv6.4s, v3.4s, v4.4s
\tstr\tq5, [sp, #32]                   // 16-byte Spill
\tldr\tx9, [sp, #8]
\tsubs\tx10, x10, #1
\tb.ne\t.LBB0_2
\tcbnz\tx9, .LBB0_1
\tret
"""


@pytest.fixture
def found(kernel_of, cpu):
    def compile_and_read(text, **defines):
        return backends.get("cpu").compile(kernel_of(text, **defines), cpu).evidence

    return compile_and_read


def test_a_tile_that_fits_the_registers_spills_nothing(found, cpu):
    facts = found(TILE, MR=4, NV=2)
    assert facts["vector_bytes"] == cpu.vector_bytes
    assert facts["hot_loop_stack_accesses"] == 0
    assert 8 <= facts["hot_loop_instructions"] <= 80


def test_a_tile_with_more_sums_than_registers_spills(found, cpu):
    sums = 2 * cpu.vector_registers
    assert found(TILE, MR=sums // 2, NV=2)["hot_loop_stack_accesses"] >= sums // 2


def test_scalar_arithmetic_has_no_vector_width(found):
    facts = found(SCALAR)
    assert facts["vector_bytes"] == 0 and facts["hot_loop_instructions"] >= 3


def test_a_source_without_arithmetic_is_no_problem(found):
    assert found("void run(void) { }\n")["vector_bytes"] == 0


def test_arm_assembly_is_read_too():
    assert evidence.read(ARM) == {"vector_bytes": 16, "hot_loop_instructions": 8, "hot_loop_stack_accesses": 2}


def test_nothing_yields_nothing():
    assert evidence.read("") == {"vector_bytes": 0, "hot_loop_instructions": 0, "hot_loop_stack_accesses": 0}
