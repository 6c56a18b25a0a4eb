// units: single instructions that C++ has no word for.
//
// Follows the PTX ISA, "ex2", "rcp" and "prefetch". Results of ex2 are off by 2 units in the last place at most, those of
// rcp by 1; what ends in _flushed takes numbers under 2^-126 for 0 and gives 0 for them.
#pragma once

KS_DEVICE float ks_ex2(float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

KS_DEVICE float ks_ex2_flushed(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

KS_DEVICE float ks_rcp_flushed(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Asks for the line at `p`, to be near when it is read.
KS_DEVICE void ks_touch(const void *p) { asm volatile("prefetch.global.L1 [%0];" ::"l"(p)); }
