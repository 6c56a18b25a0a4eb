// cluster_exchange: small values between the blocks of a cluster, through each other's shared memory.
//
// Follows the PTX ISA, "mapa", "st.shared::cluster" and "barrier.cluster" with release and acquire.
#pragma once

#include "kernsearch.cuh"

// Store v where `p`, of this block's shared memory, lies in block `rank`.
KS_DEVICE void ks_cluster_put(ks_acc *p, unsigned rank, ks_acc v) {
    unsigned there;
    const unsigned here = unsigned(__cvta_generic_to_shared(p));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
#if KS_DOUBLE
    asm volatile("st.shared::cluster.f64 [%0], %1;" ::"r"(there), "d"(v) : "memory");
#else
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(v) : "memory");
#endif
}

// All threads of all blocks: what was put before is seen after.
KS_DEVICE void ks_cluster_exchange() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
