// across: what threads that share a row have found, brought together in a fixed order; every thread gets the result.
//
// A monoid has a `value`, `none()` and `both(a, b)`. Sums, maxima, and pairs of a maximum and a sum of exponentials
// that refer to it (M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867).
// Follows the PTX ISA, "shfl.sync". All threads of the block call together.
#pragma once

#include "kernsearch.cuh"

#define ks_none_sum ks_acc(0)
#define ks_none_max (-KS_INFINITY)
#define ks_both_sum(a, b) ((a) + (b))
#define ks_both_max(a, b) ks_max(a, b)

struct ks_sum {
    typedef ks_acc value;
    static KS_DEVICE ks_acc none() { return ks_none_sum; }
    static KS_DEVICE ks_acc both(ks_acc a, ks_acc b) { return ks_both_sum(a, b); }
};
struct ks_maximum {
    typedef ks_acc value;
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

// m = max x, l = sum exp(x - m) over some elements.
struct alignas(2 * sizeof(ks_acc)) ks_pair {
    ks_acc m, l;
};
struct ks_online {
    typedef ks_pair value;
    static KS_DEVICE ks_pair none() { return {-KS_INFINITY, 0}; }
    static KS_DEVICE ks_pair both(ks_pair a, ks_pair b) {
        const ks_acc m = ks_max(a.m, b.m);
        return {m, a.l * ks_exp_of_shift(a.m, m) + b.l * ks_exp_of_shift(b.m, m)};
    }
};

// The maximum first, so that each lane scales its sum once.
template <class Monoid, int Lanes>
KS_DEVICE ks_pair ks_across_lanes(ks_pair v) {
    const ks_acc m = ks_across_lanes<ks_maximum, Lanes>(v.m);
    return {m, ks_across_lanes<ks_sum, Lanes>(v.l * ks_exp_of_shift(v.m, m))};
}

// Over `Width` neighbouring threads of a block, a power of two or a multiple of 32. There is room for one value of each
// warp, twice: a reduction writes where the one before the last did.
template <class Value, int Width>
struct ks_in_block {
    typedef Value room[2][32];
    room &warps_of;
    int turn = 0;

    template <class Monoid>
    KS_DEVICE typename Monoid::value over(typename Monoid::value v) {
        if constexpr (Width <= 32) {
            return ks_across_lanes<Monoid, Width>(v);
        } else {
            constexpr int warps = Width / 32;
            static_assert(Width % 32 == 0 && (warps & (warps - 1)) == 0, "threads of a row are no power of two");
            v = ks_across_lanes<Monoid, 32>(v);
            Value *mine = warps_of[turn++ & 1];
            const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
            if (lane == 0) mine[warp] = v;
            __syncthreads();  // all warps have written; the other half of the room is free again
            return ks_across_lanes<Monoid, warps>(mine[warp / warps * warps + lane % warps]);
        }
    }
};
