// lifted: terms exp(x - m) of a sum, times 2^16 where KS_LIFT says so and outputs have 16 bits.
//
// ex2 keeps subnormal results at the price of three instructions beside it, one that flushes them takes none: lifted,
// what it flushes is under 2^-142, which bfloat16 has no number for. The lift comes with the product by log2 e, and goes
// with the factor that outputs are scaled by. Rounding x - m plus the lift moves a term by 4e-7 of itself.
#pragma once

#include "kernsearch.cuh"

#ifndef KS_LIFT
#define KS_LIFT 0
#endif

constexpr bool ks_lifts = KS_LIFT && KS_COARSE && KS_ONLINE;
constexpr float KS_LIFTED_BY = 16.0f, KS_LOWER = 0x1p-16f;

#define KS_TERM_OF(name, monoid) ks_term_##name

// The terms of V elements of the last field; of l, lifted, if terms are.
template <int V>
KS_DEVICE void ks_last_term(
    const ks_args &x, const ks_at &i, const ks_fields &f, const ks_kept<V> &kept, ks_acc (&term)[V]
) {
#if KS_LIFT && KS_COARSE && KS_ONLINE
    ks_term_m<V>(x, i, f, kept, term);
    const float m = ks_max(f.m, -KS_LARGEST);
#pragma unroll
    for (int l = 0; l < V; l++) term[l] = ks_ex2_flushed(fmaf(term[l] - m, 1.4426950409f, KS_LIFTED_BY));
#else
    KS_LAST_FIELD(KS_TERM_OF)<V>(x, i, f, kept, term);
#endif
}

// By how much a sum that refers to m shrinks as the maximum grows to `now`.
KS_DEVICE ks_acc ks_rescale(ks_acc m, ks_acc now) {
#if KS_LIFT && KS_COARSE
    return ks_ex2_flushed((m - ks_max(now, -KS_LARGEST)) * 1.4426950409f);
#else
    return ks_exp_of_shift(m, now);
#endif
}
