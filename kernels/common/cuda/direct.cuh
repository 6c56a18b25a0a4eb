// direct: what kernels need that load operands of tensor cores from memory into registers.
//
// Follows the PTX ISA, "movmatrix", "prefetch" and "ld".
#pragma once

#include "kernsearch.cuh"

// An 8x8 matrix of 16-bit elements transposed: lane 4 i + j has elements 2 j, 2 j + 1 of row i, of either. All lanes of a
// warp together.
KS_DEVICE uint32_t ks_turn(uint32_t v) {
    uint32_t turned;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(v));
    return turned;
}

// The low, and the high, halves of two words side by side.
KS_DEVICE uint32_t ks_low_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }
KS_DEVICE uint32_t ks_high_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }

// Asks for the line at `p` to be in the second-level cache, which everybody sees as memory is, when it is read.
KS_DEVICE void ks_touch_far(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// 16 aligned bytes that nobody on this multiprocessor reads again.
KS_DEVICE uint4 ks_load_once(const void *p) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
