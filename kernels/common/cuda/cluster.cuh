// cluster: blocks that run together and read each other's shared memory.
//
// Follows the PTX ISA, "Special Registers: %cluster_ctarank", "barrier.cluster", "mapa" and "ld.shared::cluster".
#pragma once

#include "kernsearch.cuh"

KS_DEVICE unsigned ks_cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// All threads of all blocks of the cluster, warps whole. Says only that all have come: what they wrote is not made
// visible, which would take a fence of the whole device (barriers after ks_barrier_init_fence are).
KS_DEVICE void ks_cluster_sync() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// A shared address of this block as the address of the same place in block `rank`.
KS_DEVICE unsigned ks_cluster_address(unsigned address, unsigned rank) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

KS_DEVICE float4 ks_cluster_load(unsigned address) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address) : "memory");
    return v;
}
