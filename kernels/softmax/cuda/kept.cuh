// kept: a stretch of a row in the registers of the threads that share it, fields computed from it, outputs stored.
//
// The includer gives KS_TK, elements that a thread keeps. Elements are dealt out in words of V neighbours; what does
// not fit is fetched again for each field, so that rows of any length come out right.
#pragma once

#include "across.cuh"

static_assert(KS_TK % KS_VEC == 0, "TK is no whole number of words");

// Elements [first, last) of the row i.M, by `Width` threads of which this one is number `thread`.
template <int V, int Width>
struct ks_stretch {
    static constexpr int words = KS_TK / V;
    ks_kept<V> kept[words];
    int64_t first, last, rest;

    // Fetch what is kept, all loads at once: places past the end read the stretch's first word instead.
    KS_DEVICE void fetch(const ks_args &x, ks_at i, int64_t from, int64_t to, int thread) {
        first = from + int64_t(thread) * V, last = to, rest = first + int64_t(words) * Width * V;
        if (from >= to) return;
#pragma unroll
        for (int k = 0; k < words; k++) {
            const int64_t at = first + int64_t(k) * Width * V;
            i.N = at < to ? at : from;
            ks_row_fetch<V>(x, i, kept[k]);
        }
    }
};

// Adds this thread's terms of one field to `a`; `settle` leaves the terms in what is kept.
#define KS_OWN_TERMS(name, monoid, s, a, settle)                                                     \
    {                                                                                                \
        _Pragma("unroll") for (int k = 0; k < s.words; k++) {                                        \
            i.N = s.first + int64_t(k) * Width * V;                                                  \
            if (i.N < s.last) {                                                                      \
                ks_acc term[V];                                                                      \
                ks_term_##name<V>(x, i, f, s.kept[k], term);                                         \
                _Pragma("unroll") for (int l = 0; l < V; l++) a = ks_both_##monoid(a, term[l]);      \
                if (settle) ks_row_settle<V>(s.kept[k], term);                                       \
            }                                                                                        \
        }                                                                                            \
        for (i.N = s.rest; i.N < s.last; i.N += int64_t(Width) * V) {                                \
            ks_kept<V> more;                                                                         \
            ks_acc term[V];                                                                          \
            ks_row_fetch<V>(x, i, more);                                                             \
            ks_term_##name<V>(x, i, f, more, term);                                                  \
            _Pragma("unroll") for (int l = 0; l < V; l++) a = ks_both_##monoid(a, term[l]);          \
        }                                                                                            \
    }

#define KS_TERM_OF(name, monoid) ks_term_##name

// Compute and store the outputs of this thread's elements.
template <int V, int Width>
KS_DEVICE void ks_put_all(const ks_args &x, ks_at i, const ks_fields &f, ks_stretch<V, Width> &s) {
#pragma unroll
    for (int k = 0; k < s.words; k++) {
        i.N = s.first + int64_t(k) * Width * V;
        if (i.N < s.last) ks_row_put<V>(x, i, f, s.kept[k]);
    }
    for (i.N = s.rest; i.N < s.last; i.N += int64_t(Width) * V) {
        ks_kept<V> more;
        ks_row_fetch<V>(x, i, more);
        if (KS_SETTLES) {
            ks_acc term[V];
            KS_LAST_FIELD(KS_TERM_OF)<V>(x, i, f, more, term);
            ks_row_settle<V>(more, term);
        }
        ks_row_put<V>(x, i, f, more);
    }
}
