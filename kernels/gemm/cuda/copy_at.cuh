// An asynchronous copy from a base that all threads share and an offset of the thread's own.
//
// PTX ISA, "Data Movement and Conversion Instructions: Non-bulk copy": cp.async (sm_80 and later). Wants shared.cuh.

#pragma once

// Copy Bytes bytes from base + offset.
template <int Bytes>
KS_DEVICE void ks_copy_at(ks_shared_t to, const char *base, uint32_t offset) {
    // The sum is hidden from the compiler, which would keep a 64-bit pointer for every copy of a tile instead.
    if constexpr (Bytes == 16)
        asm volatile("{\n.reg .b64 p;\ncvt.u64.u32 p, %2;\nadd.u64 p, p, %1;\n"
                     "cp.async.cg.shared.global.L2::128B [%0], [p], 16;\n}" ::"r"(to), "l"(base), "r"(offset));
    else
        asm volatile("{\n.reg .b64 p;\ncvt.u64.u32 p, %2;\nadd.u64 p, p, %1;\n"
                     "cp.async.ca.shared.global [%0], [p], 4;\n}" ::"r"(to), "l"(base), "r"(offset));
}
