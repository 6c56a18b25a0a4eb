// cluster_words: 16 bytes at a time into the shared memory of another block of the cluster.
//
// Follows the PTX ISA, "st.async", "mapa" and "barrier.cluster"; the barriers count bytes as `mbarrier` says.
#pragma once

#include "cluster.cuh"
#include "mbarrier.cuh"

// Store v where `address`, of this block's shared memory, lies in block `rank`, and count its bytes at the barrier there.
KS_DEVICE void ks_cluster_send(unsigned address, unsigned barrier, unsigned rank, float4 v) {
    const unsigned to = ks_cluster_address(address, rank), at = ks_cluster_address(barrier, rank);
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(at) : "memory");
}

// The two halves of ks_cluster_sync, between which a warp may do what concerns no other block.
KS_DEVICE void ks_cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
KS_DEVICE void ks_cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
