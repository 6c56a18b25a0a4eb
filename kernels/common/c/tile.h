// Register tiles: the inner loop of a matrix product, and the packing that feeds it.
//
// The includer gives KS_MR rows and KS_NR columns of the tile and KS_KU. MR * NR sums stay in registers while
// the loop runs over the depth; every step loads NR values of B once and broadcasts MR values of A.

#ifndef KS_TILE_H
#define KS_TILE_H

#include "vector.h"

#ifndef KS_LINE_BYTES
#define KS_LINE_BYTES 64
#endif

#define KS_PACKED_BYTES 512  // read from one row at a time while packing: some lines, which are fetched together
#define KS_PACKED_AHEAD 8    // rows

#define KS_NV ((int)(KS_NR / KS_LANES))  // vectors across the tile

_Static_assert(KS_NR % (KS_VECTOR_BYTES / sizeof(ks_t)) == 0, "NR is not a whole number of vectors");
_Static_assert(KS_MR * (KS_NR * sizeof(ks_t) / KS_VECTOR_BYTES) + (KS_NR * sizeof(ks_t) / KS_VECTOR_BYTES) + 1 <=
                   KS_VECTOR_REGISTERS + 8,
               "register tile needs far more vector registers than the device has");

// Keep a value in a register: compilers would rather load it again for each use.
KS_INLINE void ks_keep(ks_v *v) {
#if defined(__AVX512F__)
    __asm__("" : "+v"(*v));
#elif defined(__x86_64__)
    __asm__("" : "+x"(*v));
#elif defined(__aarch64__)
    __asm__("" : "+w"(*v));
#endif
}

// Defines name(depth, a, a_row, a_k, b, b_k, kept, kept_row, out, out_row):
//     out[i, 0:width] = kept[i, 0:width] + sum over k of a[i,k] * b[k, 0:width]         with width = nv vectors
// Without `kept`, NULL, it is the sum alone; out may be kept. A and B are the types of a and b. A_ROW and A_K are the
// strides of a: parameters or constants. The loop holds loads and multiply-adds only: where two hardware threads share a
// core, each further instruction costs.
#define KS_DEFINE_TILE(name, nv, A, B, A_ROW, A_K)                                                                \
    static __attribute__((noinline, unused)) void name(int64_t depth, const A *restrict a, int64_t a_row,         \
                                                       int64_t a_k, const B *restrict b, int64_t b_k,             \
                                                       const ks_t *kept, int64_t kept_row, ks_t *out,             \
                                                       int64_t out_row) {                                         \
        (void)a_row, (void)a_k;                                                                                   \
        ks_v sum[KS_MR][nv];                                                                                      \
        KS_UNROLL(32) for (int i = 0; i < KS_MR; i++) {                                                           \
            KS_UNROLL(32) for (int j = 0; j < nv; j++) sum[i][j] = (ks_v){0};                                     \
        }                                                                                                         \
        KS_UNROLL(KS_KU) for (int64_t k = 0; k < depth; k++) {                                                    \
            ks_v row[nv];                                                                                         \
            KS_UNROLL(32) for (int j = 0; j < nv; j++) {                                                          \
                row[j] = ks_load_stored(b + j * KS_LANES);                                                        \
                ks_keep(&row[j]);                                                                                 \
            }                                                                                                     \
            KS_UNROLL(32) for (int i = 0; i < KS_MR; i++) {                                                       \
                ks_v one = ks_splat_stored(a[i * (A_ROW)]);                                                       \
                KS_UNROLL(32) for (int j = 0; j < nv; j++) sum[i][j] += one * row[j];                             \
            }                                                                                                     \
            a += (A_K);                                                                                           \
            b += b_k;                                                                                             \
        }                                                                                                         \
        if (kept) {                                                                                               \
            KS_UNROLL(32) for (int i = 0; i < KS_MR; i++) {                                                       \
                KS_UNROLL(32) for (int j = 0; j < nv; j++)                                                        \
                    sum[i][j] += ks_load_all(kept + i * kept_row + j * KS_LANES);                                 \
            }                                                                                                     \
        }                                                                                                         \
        KS_UNROLL(32) for (int i = 0; i < KS_MR; i++) {                                                           \
            KS_UNROLL(32) for (int j = 0; j < nv; j++) ks_store_all(out + i * out_row + j * KS_LANES, sum[i][j]); \
        }                                                                                                         \
    }

// Columns that the tile for so many columns reads and writes: a ragged edge costs no whole tile.
KS_INLINE int64_t ks_tile_columns(int64_t columns) {
    for (int64_t nv = 1; nv <= 4; nv *= 2) {
        if (nv < KS_NV && columns <= nv * KS_LANES) return nv * KS_LANES;
    }
    return KS_NR;
}

// Defines name(columns, ...): the tile that is just wide enough.
#define KS_DEFINE_TILES(name, A, B, A_ROW, A_K)                                                             \
    KS_DEFINE_TILE(name##_1, 1, A, B, A_ROW, A_K)                                                           \
    KS_DEFINE_TILE(name##_2, 2, A, B, A_ROW, A_K)                                                           \
    KS_DEFINE_TILE(name##_4, 4, A, B, A_ROW, A_K)                                                           \
    KS_DEFINE_TILE(name##_all, KS_NV, A, B, A_ROW, A_K)                                                     \
    KS_INLINE void name(int64_t columns, int64_t depth, const A *a, int64_t a_row, int64_t a_k, const B *b, \
                        int64_t b_k, const ks_t *kept, int64_t kept_row, ks_t *out, int64_t out_row) {      \
        const int64_t wide = ks_tile_columns(columns);                                                      \
        if (wide == KS_NR)                                                                                  \
            name##_all(depth, a, a_row, a_k, b, b_k, kept, kept_row, out, out_row);                         \
        else if (wide == KS_LANES)                                                                          \
            name##_1(depth, a, a_row, a_k, b, b_k, kept, kept_row, out, out_row);                           \
        else if (wide == 2 * KS_LANES)                                                                      \
            name##_2(depth, a, a_row, a_k, b, b_k, kept, kept_row, out, out_row);                           \
        else if (KS_NV > 4)                                                                                 \
            name##_4(depth, a, a_row, a_k, b, b_k, kept, kept_row, out, out_row);                           \
    }

typedef float ks_quad __attribute__((vector_size(16)));

// out[k * width + i] = from[i * line_step + k] for 4 x 4 floats.
KS_INLINE void ks_turn(float *out, int64_t width, const float *from, int64_t line_step) {
    ks_quad a, b, c, d;
    memcpy(&a, from, sizeof a);
    memcpy(&b, from + line_step, sizeof b);
    memcpy(&c, from + 2 * line_step, sizeof c);
    memcpy(&d, from + 3 * line_step, sizeof d);
    const ks_quad ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const ks_quad ef = __builtin_shufflevector(a, b, 2, 6, 3, 7), gh = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    a = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    b = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    c = __builtin_shufflevector(ef, gh, 0, 1, 4, 5);
    d = __builtin_shufflevector(ef, gh, 2, 3, 6, 7);
    memcpy(out, &a, sizeof a);
    memcpy(out + width, &b, sizeof b);
    memcpy(out + 2 * width, &c, sizeof c);
    memcpy(out + 3 * width, &d, sizeof d);
}

// Defines name(out, width, lines, depth, from, line_step, k_step), which packs lines (rows of A, columns of B) into
// panels of `width`, each depth first: out[p * width * depth + k * width + i] = from[p * width + i, k], of type FROM,
// through `one`; `turn` says that these are floats, of which four lines by four steps are turned in registers where k
// is contiguous. The last panel is filled up with 0. Where neighbouring lines are neighbours in memory some panels are
// filled at a time, so that memory is read in long pieces, those of some steps ahead fetched meanwhile.
#define KS_DEFINE_PACK(name, FROM, TO, one, turn)                                                                      \
KS_INLINE void name##_across(TO *restrict out, const int64_t width, int64_t panels, int64_t depth,                     \
                             const FROM *restrict from, int64_t k_step) {                                              \
    const int64_t line = KS_LINE_BYTES / (int64_t)sizeof(FROM), some = ks_ceil(KS_PACKED_BYTES / sizeof(FROM), width); \
    for (int64_t p = 0; p < panels; p += some) {                                                                       \
        const int64_t own = ks_least(some, panels - p), wide = own * width;                                            \
        const FROM *source = from + p * width, *ahead = source + KS_PACKED_AHEAD * k_step;                             \
        TO *place = out + p * width * depth;                                                                           \
        for (int64_t k = 0; k < depth; k++, source += k_step, ahead += k_step, place += width) {                       \
            if (k + KS_PACKED_AHEAD < depth)                                                                           \
                for (int64_t i = 0; i < wide; i += line) __builtin_prefetch(ahead + i);                                \
            for (int64_t q = 0; q < own; q++)                                                                          \
                for (int64_t i = 0; i < width; i++) place[q * width * depth + i] = one(source[q * width + i]);         \
        }                                                                                                              \
    }                                                                                                                  \
}                                                                                                                      \
KS_INLINE void name##_along(TO *restrict out, const int64_t width, int64_t lines, int64_t depth,                       \
                            const FROM *restrict from, int64_t line_step, int64_t k_step) {                            \
    const int64_t line = KS_LINE_BYTES / (int64_t)sizeof(FROM);                                                        \
    for (int64_t first = 0; first < width; first += 8) { /* few lines at a time: more would share a cache set */       \
        const int64_t some = ks_least(8, width - first), valid = ks_least(some, lines - first);                        \
        const FROM *source = from + first * line_step, *ahead = from + (first + width) * line_step;                    \
        TO *place = out + first;                                                                                       \
        const int64_t quads = turn && k_step == 1 ? valid / 4 * 4 : 0;                                                 \
        for (int64_t k = 0; k < depth;) {                                                                              \
            const int64_t stop = ks_least(depth, k + line);                                                            \
            for (int64_t i = 0; i < valid; i++) __builtin_prefetch(ahead + i * line_step + k * k_step);                \
            for (; quads > 0 && k + 4 <= stop; k += 4, place += 4 * width) {                                           \
                for (int64_t i = 0; i < quads; i += 4)                                                                 \
                    ks_turn((void *)&place[i], width, (const void *)&source[i * line_step + k], line_step);            \
                for (int64_t i = quads; i < some; i++) {                                                               \
                    KS_UNROLL(4) for (int64_t q = 0; q < 4; q++)                                                       \
                        place[q * width + i] = i < valid ? one(source[i * line_step + k + q]) : 0;                     \
                }                                                                                                      \
            }                                                                                                          \
            if (valid == 8) {                                                                                          \
                for (; k < stop; k++, place += width) {                                                                \
                    KS_UNROLL(8) for (int64_t i = 0; i < 8; i++)                                                       \
                        place[i] = one(source[i * line_step + k * k_step]);                                            \
                }                                                                                                      \
            } else {                                                                                                   \
                for (; k < stop; k++, place += width) {                                                                \
                    for (int64_t i = 0; i < some; i++)                                                                 \
                        place[i] = i < valid ? one(source[i * line_step + k * k_step]) : 0;                            \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
}                                                                                                                      \
static __attribute__((noinline, unused)) void name(TO *restrict out, const int64_t width, int64_t lines,               \
                                                   int64_t depth, const FROM *restrict from, int64_t line_step,        \
                                                   int64_t k_step) {                                                   \
    const int64_t whole = line_step == 1 ? lines / width : 0;                                                          \
    if (whole > 0) name##_across(out, width, whole, depth, from, k_step);                                              \
    for (int64_t i = whole * width; i < lines; i += width)                                                             \
        name##_along(out + i * depth, width, lines - i, depth, from + i * line_step, line_step, k_step);               \
}

KS_DEFINE_PACK(ks_pack, ks_t, ks_t, ks_same, !KS_DOUBLE)
#if !KS_DOUBLE
KS_DEFINE_PACK(ks_pack_bf16, ks_bf16, ks_t, ks_from_bf16, 0)
#endif

#endif
