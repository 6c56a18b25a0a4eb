// online: a thread's maximum and sum of exponentials, over words that come a few at a time.
#pragma once

#include "across.cuh"
#include "compensated.cuh"
#include "lifted.cuh"

// l = sum exp(x - m) over what was taken in so far, lifted if terms are; `lost` is what rounding has cost it.
struct ks_state {
    ks_acc m = -KS_INFINITY, l = 0, lost = 0;
};

// Takes in the first `count` words, all of them if `All`, `step` elements apart, the first of which is first.N: the
// maximum is raised first, so that no term exceeds 1. `settle` leaves the terms in the words.
template <bool All, int V, int Words>
KS_DEVICE void ks_take_in(
    const ks_args &x, const ks_at &first, int64_t step, int count, ks_kept<V> (&kept)[Words], ks_state &s, bool settle
) {
    ks_fields f;
    ks_at i = first;
    f.m = s.m;
#pragma unroll
    for (int k = 0; k < Words; k++) {
        ks_acc term[V];
        i.N = first.N + k * step;
        if (!All && k >= count) continue;
        ks_term_m<V>(x, i, f, kept[k], term);
#pragma unroll
        for (int n = 0; n < V; n++) f.m = ks_max(f.m, term[n]);
    }
    const ks_acc less = ks_rescale(s.m, f.m);
    s.l *= less, s.lost *= less, s.m = f.m;
    ks_acc part = 0;
#pragma unroll
    for (int k = 0; k < Words; k++) {
        ks_acc term[V];
        i.N = first.N + k * step;
        if (!All && k >= count) continue;
        ks_last_term<V>(x, i, f, kept[k], term);
#pragma unroll
        for (int n = 0; n < V; n++) part += term[n];
        if (settle) ks_row_settle<V>(kept[k], term);
    }
    ks_gather_sum(s.l, s.lost, part);
}
