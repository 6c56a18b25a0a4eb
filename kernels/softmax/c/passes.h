// One field of a row: a pass over its elements that adds up terms, or takes their maximum.
//
// The includer gives KS_KU, vectors per turn of the loop. Long rows are added up in pieces, so that the error of a sum
// does not grow with the row.

#ifndef KS_PASSES_H
#define KS_PASSES_H

#include "../../common/c/rows.h"

#define KS_PIECE ((int64_t)1024)  // elements, a multiple of any turn

// Defines f.name over [j, end) of the row at i; TERM(x, i, count, how) gives a vector of terms and may do more with it.
#define KS_PASS(name, monoid, j, end, TERM)                                                        \
    {                                                                                              \
        ks_v whole = ks_none_##monoid, lost = {0};                                                 \
        for (int64_t at = (j); at < (end);) {                                                      \
            const int64_t stop = ks_least((end), at + KS_PIECE);                                   \
            ks_v part[KS_KU];                                                                      \
            KS_UNROLL(8) for (int u = 0; u < KS_KU; u++) part[u] = ks_none_##monoid;               \
            for (; at + KS_KU * KS_LANES <= stop; at += KS_KU * KS_LANES) {                        \
                KS_UNROLL(8) for (int u = 0; u < KS_KU; u++) {                                     \
                    i.N = at + u * KS_LANES;                                                       \
                    const ks_v term = TERM(name, KS_LANES);                                        \
                    part[u] = ks_both_##monoid(part[u], term);                                     \
                }                                                                                  \
            }                                                                                      \
            for (; at + KS_LANES <= stop; at += KS_LANES) {                                        \
                i.N = at;                                                                          \
                const ks_v term = TERM(name, KS_LANES);                                            \
                part[0] = ks_both_##monoid(part[0], term);                                         \
            }                                                                                      \
            if (at < stop) {                                                                       \
                i.N = at;                                                                          \
                const ks_v term = TERM(name, stop - at);                                           \
                part[0] = ks_both_##monoid(                                                        \
                    part[0], ks_select(ks_first_lanes(stop - at), term, ks_none_##monoid));        \
                at = stop;                                                                         \
            }                                                                                      \
            KS_UNROLL(8) for (int u = 1; u < KS_KU; u++) part[0] = ks_both_##monoid(part[0], part[u]); \
            ks_gather_##monoid(&whole, &lost, part[0]);                                            \
        }                                                                                          \
        KS_ACROSS(whole, ks_both_##monoid);                                                        \
        f.name = whole;                                                                            \
    }

// Runs BODY(count) for the vectors of [j, end), i.N at each.
#define KS_EACH(j, end, BODY)                                     \
    {                                                             \
        i.N = (j);                                                \
        for (; i.N + KS_KU * KS_LANES <= (end);) {                \
            KS_UNROLL(8) for (int u = 0; u < KS_KU; u++) {        \
                BODY(KS_LANES)                                    \
                i.N += KS_LANES;                                  \
            }                                                     \
        }                                                         \
        for (; i.N + KS_LANES <= (end); i.N += KS_LANES) BODY(KS_LANES) \
        if (i.N < (end)) BODY((end) - i.N)                        \
    }

// What the outputs take of a vector: the operands, or the last field's term where that is all they want.
#if KS_SETTLES
KS_INLINE ks_kept ks_from(ks_v term) {
    ks_kept kept;
    memset(&kept, 0, sizeof kept);
    ks_row_settle(&kept, term);
    return kept;
}
#define KS_TERM_OF(name, monoid) ks_term_##name
#define ks_settled(x, i, f, kept) ks_from(KS_LAST_FIELD(KS_TERM_OF)(x, i, f, kept))
#else
#define ks_settled(x, i, f, kept) (kept)
#endif

#if KS_STASHES
KS_INLINE ks_v ks_stashed(const ks_args *x, ks_at i, int64_t count, const int how, ks_v term) {
    ks_row_stash(x, i, count, how, term);
    return term;
}
#endif

// Keep a term in a row of one's own, which has room for a whole vector past its end.
KS_INLINE ks_v ks_noted(ks_t *row, ks_v term) {
    ks_store_all(row, term);
    return term;
}

#endif
