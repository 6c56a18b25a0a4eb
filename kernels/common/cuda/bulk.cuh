// bulk: tiles moved between global and shared memory by the copy engine, after a tensor map.
//
// Follows the PTX ISA, "Data Movement and Conversion Instructions: cp.async.bulk.tensor". Maps have three dimensions
// (contiguous, other, batch). Elements outside of the array are read as 0, still count as bytes, and are not written.
// One thread issues a copy. Shared addresses are 32 bits wide; with a 128-byte swizzle tiles start at multiples of 1024.
#pragma once

#include "kernsearch.cuh"

KS_DEVICE void ks_bulk_prefetch_map(const void *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Loads a box into this block; its bytes are counted by `barrier`.
KS_DEVICE void ks_bulk_load(unsigned to, const void *map, unsigned barrier, int inner, int outer, int batch) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
        ::"r"(to), "l"(map), "r"(barrier), "r"(inner), "r"(outer), "r"(batch) : "memory");
}

// Loads a box into the same place of every block of `mask`, each counting its bytes by its own barrier.
KS_DEVICE void ks_bulk_load_to(unsigned to, const void *map, unsigned barrier, int inner, int outer, int batch,
                               unsigned short mask) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3, %4, %5}], [%2], %6;"
        ::"r"(to), "l"(map), "r"(barrier), "r"(inner), "r"(outer), "r"(batch), "h"(mask) : "memory");
}

KS_DEVICE void ks_bulk_store(const void *map, unsigned from, int inner, int outer, int batch) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];"
                 ::"l"(map), "r"(from), "r"(inner), "r"(outer), "r"(batch) : "memory");
}

// Stores since the last commit are one group of this thread.
KS_DEVICE void ks_bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until at most PENDING groups of this thread have still to read their shared memory.
template <int PENDING> KS_DEVICE void ks_bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

template <int PENDING> KS_DEVICE void ks_bulk_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}

// What this thread wrote to shared memory by ordinary stores comes before what the copy engine and wgmma do later.
KS_DEVICE void ks_fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The same, also for what this thread did in other memory, as in that of other blocks of its cluster.
KS_DEVICE void ks_fence_async_everywhere() { asm volatile("fence.proxy.async;" ::: "memory"); }

// Where byte `offset` of a box of rows of SWIZZLE bytes lies: 16-byte pieces of a row are exchanged by the row's number.
template <int SWIZZLE> KS_DEVICE constexpr unsigned ks_swizzled(unsigned offset) {
    return offset ^ (offset >> 3 & (SWIZZLE == 128 ? 0x70u : SWIZZLE == 64 ? 0x30u : 0x10u));
}
