// registers: moving registers between warpgroups, barriers of a part of a block, and one thread of a warp.
//
// Follows the PTX ISA, "setmaxnreg" (every warp of a warpgroup executes it; the kernel has a register cap through
// __launch_bounds__), "bar" and "elect.sync".
#pragma once

#include "kernsearch.cuh"

template <int COUNT> KS_DEVICE void ks_registers_less() {
    static_assert(COUNT % 8 == 0 && COUNT >= 24 && COUNT <= 256, "setmaxnreg takes multiples of 8 from 24 to 256");
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> KS_DEVICE void ks_registers_more() {
    static_assert(COUNT % 8 == 0 && COUNT >= 24 && COUNT <= 256, "setmaxnreg takes multiples of 8 from 24 to 256");
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Barrier `name` (1 .. 15; 0 is __syncthreads) of `threads` threads.
KS_DEVICE void ks_sync_some(int name, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// True in one thread of a whole warp. The compiler then knows that copies are issued once, which a comparison of
// threadIdx does not tell it.
KS_DEVICE bool ks_elect() {
    unsigned elected;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "elect.sync _|p, 0xFFFFFFFF;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}" : "=r"(elected));
    return elected;
}
