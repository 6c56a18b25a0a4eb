// across: sums and maxima over the threads that share a row, in a fixed order; every thread gets the result.
//
// Follows the PTX ISA, "shfl.sync". All threads of the block call together.
#pragma once

#include "kernsearch.cuh"

#define ks_none_sum ks_acc(0)
#define ks_none_max (-KS_INFINITY)
#define ks_both_sum(a, b) ((a) + (b))
#define ks_both_max(a, b) ks_max(a, b)

struct ks_sum {
    static KS_DEVICE ks_acc none() { return ks_none_sum; }
    static KS_DEVICE ks_acc both(ks_acc a, ks_acc b) { return ks_both_sum(a, b); }
};
struct ks_maximum {
    static KS_DEVICE ks_acc none() { return ks_none_max; }
    static KS_DEVICE ks_acc both(ks_acc a, ks_acc b) { return ks_both_max(a, b); }
};
#define ks_monoid_sum ks_sum
#define ks_monoid_max ks_maximum

// Over `Lanes` neighbouring lanes, a power of two.
template <class Monoid, int Lanes>
KS_DEVICE ks_acc ks_across_lanes(ks_acc v) {
#pragma unroll
    for (int gap = Lanes / 2; gap > 0; gap /= 2) v = Monoid::both(v, __shfl_xor_sync(0xffffffffu, v, gap));
    return v;
}

// Room for one value of each warp, twice: a reduction writes where the one before the last did.
struct ks_across_room {
    ks_acc warp[2][32];
};

// Over `Width` neighbouring threads, a power of two or a multiple of 32; `turn` counts reductions from 0 on.
template <class Monoid, int Width>
KS_DEVICE ks_acc ks_across(ks_acc v, ks_across_room &room, int &turn) {
    if constexpr (Width <= 32) {
        return ks_across_lanes<Monoid, Width>(v);
    } else {
        constexpr int warps = Width / 32;
        static_assert(Width % 32 == 0 && (warps & (warps - 1)) == 0, "threads of a row are no power of two");
        v = ks_across_lanes<Monoid, 32>(v);
        ks_acc *mine = room.warp[turn & 1];
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (lane == 0) mine[warp] = v;
        turn++;
        __syncthreads();  // all warps have written; the other half of the room is free again
        v = mine[warp / warps * warps + lane % warps];
        return ks_across_lanes<Monoid, warps>(v);
    }
}
