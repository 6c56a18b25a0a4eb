// cluster_exchange: what the threads of a cluster have found of a row, brought together in each of its blocks.
//
// Each warp sends its value to all blocks, which wait for the bytes: no fence, as a barrier of the cluster that shows
// what was written before it would take, and no barrier of the block beside it.
// Follows the PTX ISA, "st.async" and "mapa"; the barriers count bytes as `mbarrier` says.
#pragma once

#include "across.cuh"
#include "cluster.cuh"
#include "mbarrier.cuh"

// Store v where `p`, of this block's shared memory, lies in block `rank`, and count its bytes at the barrier there.
KS_DEVICE void ks_cluster_send(ks_acc *p, unsigned barrier, unsigned rank, ks_acc v) {
    const unsigned to = ks_cluster_address(ks_shared_address(p), rank), at = ks_cluster_address(barrier, rank);
#if KS_DOUBLE
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f64 [%0], %1, [%2];" ::"r"(to), "d"(v), "r"(at)
                 : "memory");
#else
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(v), "r"(at)
                 : "memory");
#endif
}
KS_DEVICE void ks_cluster_send(ks_pair *p, unsigned barrier, unsigned rank, ks_pair v) {
    const unsigned to = ks_cluster_address(ks_shared_address(p), rank), at = ks_cluster_address(barrier, rank);
#if KS_DOUBLE
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f64 [%0], {%1, %2}, [%3];" ::"r"(to),
                 "d"(v.m), "d"(v.l), "r"(at) : "memory");
#else
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
                 "f"(v.m), "f"(v.l), "r"(at) : "memory");
#endif
}

template <class Value, int Blocks, int Width>
struct ks_in_cluster {
    static constexpr int warps = Width / 32, all = Blocks * warps;
    static_assert(Width % 32 == 0 && (all & (all - 1)) == 0, "warps of a cluster are no power of two");
    // Twice: a block sends for the next reduction while another one reads of this; none is two ahead, as each waits for
    // all warps of all blocks.
    struct alignas(16) room {
        Value warp[2][all];
        unsigned long long barrier[2];
    };
    room &here;
    unsigned rank;
    int turn = 0;

    // All threads of the cluster, before anything is sent.
    KS_DEVICE void open() const {
        if (threadIdx.x == 0) {
            for (int half = 0; half < 2; half++) ks_barrier_init(ks_shared_address(&here.barrier[half]), 1);
            ks_barrier_init_fence();
        }
        ks_cluster_sync();
    }

    template <class Monoid>
    KS_DEVICE typename Monoid::value over(typename Monoid::value v) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const unsigned barrier = ks_shared_address(&here.barrier[turn & 1]);
        Value *found = here.warp[turn & 1];
        v = ks_across_lanes<Monoid, 32>(v);
        if (threadIdx.x == 0) ks_barrier_expect(barrier, all * sizeof(Value));
        if (lane < Blocks) ks_cluster_send(found + rank * warps + warp, barrier, lane, v);
        ks_barrier_wait(barrier, turn >> 1 & 1);
        turn++;
        v = found[lane % all];
#pragma unroll
        for (int n = 32; n < all; n += 32) v = Monoid::both(v, found[n + lane]);
        return ks_across_lanes<Monoid, (all < 32 ? all : 32)>(v);
    }
};
