// state: what a thread carries along for a row of scores that lies across four lanes, and how it goes on by a tile.
//
// Scores are multiplied by `sharp`, the factor that turns them into exponents of 2, only where they are exponents: a
// negative factor turns them around first, so that the largest score is the largest exponent.
#pragma once

#include "kernsearch.cuh"
#include "units.cuh"

constexpr float KS_LOG2E = 1.4426950408889634f;

struct ks_sharpness {
    float sharp, size;  // exponents of 2, and scores, by what a maximum is of
    bool turned;

    KS_DEVICE ks_sharpness(const ks_args &x) {
        const float scale = ks_scale(x);
        size = fabsf(scale), turned = scale < 0;
        sharp = fmaxf(size * KS_LOG2E, 1.17549435e-38f);  // not 0, which times -inf is not a number
    }
    KS_DEVICE float shift(float most) const { return most == -KS_INFINITY ? 0.0f : most * sharp; }
    // What a maximum says of scores: nothing seen is -inf, whatever the factor.
    KS_DEVICE float score(float most) const { return most == -KS_INFINITY ? most : most * size; }
};

// Largest of a row, in all four lanes that share it; and the sum.
KS_DEVICE float ks_row_most(float v) {
    v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFF, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xFFFFFFFF, v, 2));
}
KS_DEVICE float ks_row_sum(float v) {
    v += __shfl_xor_sync(0xFFFFFFFF, v, 1);
    return v + __shfl_xor_sync(0xFFFFFFFF, v, 2);
}

// Two weights side by side, rounded to nearest even, `low` first in memory.
KS_DEVICE unsigned ks_pair(float low, float high, ks_bf16) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned *>(&v);
}
KS_DEVICE unsigned ks_pair(float low, float high, ks_f16) {
    const __half2 v = __floats2half2_rn(low, high);
    return *reinterpret_cast<const unsigned *>(&v);
}
