// Rows: how a vector of a row is stored, and what is added up at its ragged end.
//
// `how` says what is known of the arrays of a row; the includer passes it as a constant, so that each way has loops of
// its own.

#ifndef KS_ROWS_H
#define KS_ROWS_H

#include "elementary.h"

#define KS_CONTIGUOUS 1  // neighbours in a row are neighbours in memory
#define KS_STREAMED 2    // stores go around the caches where the address is aligned

KS_INLINE void ks_fence_streams(int how) {
#if defined(__x86_64__)
    if (how & KS_STREAMED) __builtin_ia32_sfence();
#endif
    (void)how;
}

KS_INLINE void ks_store_how(ks_t *p, int64_t stride, int64_t count, ks_v v, const int how) {
#if defined(__x86_64__) && KS_VECTOR_BYTES >= 32
    if ((how & KS_STREAMED) && stride == 1 && count >= KS_LANES && (uintptr_t)p % KS_VECTOR_BYTES == 0) {
#if KS_VECTOR_BYTES == 64
        _mm512_stream_si512((void *)p, (__m512i)v);
#else
        _mm256_stream_si256((void *)p, (__m256i)v);
#endif
        return;
    }
#endif
    (void)how;
    ks_store(p, stride, count, v);
}

#if !KS_DOUBLE
KS_INLINE void ks_store_how_bf16(ks_bf16 *p, int64_t stride, int64_t count, ks_v v, const int how) {
    (void)how;
    ks_store_bf16(p, stride, count, v);
}
#endif

// All ones in the first `count` lanes.
KS_INLINE ks_m ks_first_lanes(int64_t count) {
    ks_m mask;
    for (int64_t i = 0; i < KS_LANES; i++) mask[i] = i < count ? -1 : 0;
    return mask;
}

#define ks_none_sum ((ks_v){0})
#define ks_none_max ks_splat(-KS_INFINITY)
#define ks_both_sum(a, b) ((a) + (b))
#define ks_both_max(a, b) ks_max(a, b)

// Add a piece to a whole, carrying along what rounding lost: the error does not grow with the number of pieces.
KS_INLINE void ks_gather_sum(ks_v *whole, ks_v *lost, ks_v piece) {
    const ks_v more = piece - *lost, sum = *whole + more, left = (sum - *whole) - more;
    *lost = ks_select((ks_m)(left == left), left, (ks_v){0});  // NaN where the sum is infinite
    *whole = sum;
}

KS_INLINE void ks_gather_max(ks_v *whole, ks_v *lost, ks_v piece) {
    (void)lost;
    *whole = ks_max(*whole, piece);
}

// All lanes of a vector combined, in every lane: by halves.
#define KS_ACROSS(v, both)                                                       \
    do {                                                                         \
        for (int64_t gap = KS_LANES / 2; gap > 0; gap /= 2) {                    \
            ks_v other;                                                          \
            for (int64_t l = 0; l < KS_LANES; l++) other[l] = (v)[l ^ gap];      \
            v = both(v, other);                                                  \
        }                                                                        \
    } while (0)

#endif
