// Copies from global to shared memory that go on while the thread computes.
//
// PTX ISA, "Data Movement and Conversion Instructions: Non-bulk copy": cp.async, cp.async.commit_group,
// cp.async.wait_group (sm_80 and later). A thread waits for its own copies; a barrier then shows them to the others.

#pragma once

#include "shared.cuh"

// Copy the first `valid` of Bytes bytes and fill the rest with zeros; both addresses are multiples of Bytes. Nothing is
// read when valid is 0. Pieces of 16 bytes pass the first-level cache by.
template <int Bytes>
KS_DEVICE void ks_copy_async(ks_shared_t to, const void *from, int valid) {
    static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "cp.async copies 4, 8 or 16 bytes");
    if (Bytes == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(Bytes), "r"(valid)
                     : "memory");
}

// What this thread has asked for since the last call is one group.
KS_DEVICE void ks_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most Pending of this thread's groups, the latest, are still under way.
template <int Pending>
KS_DEVICE void ks_copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}
