// Pairs of bfloat16: packing operands for the instructions that multiply and add two neighbours along k at a time.
//
// The includer gives KS_AMX, 1 for tiles of 16 rows of 32 values, 0 for vectors of 16 pairs. Operands are packed into
// panels of some lines (rows of A, columns of B) by `whole` steps of k, the depth filled up with 0:
//
//     by pairs   for each two steps of k, of all lines: the two values of a line side by side
//     by lines   for each 32 steps of k, of all lines: the 32 values of a line side by side
//
// These instructions take subnormal numbers for 0 and make subnormal results 0. So each panel ends with what its smallest
// number other than 0 is, its exponent: where products of two panels are multiples of the smallest normal number, so are
// all sums of them, and nothing is flushed. Where they are not, another loop must multiply (`ks_flushes`).

#ifndef KS_PAIRS_H
#define KS_PAIRS_H

#include "vector.h"

#ifndef KS_LINE_BYTES
#define KS_LINE_BYTES 64
#endif

#define KS_STEPS (KS_AMX ? 32 : 2)  // of k, of which a panel has whole groups
#define KS_TAIL 32                  // values at the end of a panel, of which the first is the exponent
#define KS_ROW_BYTES 2048           // read from one row at a time while packing
#define KS_ROWS_AHEAD 4             // rows that are fetched meanwhile
#define KS_EXPONENTS 142            // the least sum of two exponents, each from 1 on: of 2^-126, with 14 bits below

typedef uint32_t ks_sixteen __attribute__((vector_size(64)));  // pairs
typedef uint16_t ks_values __attribute__((vector_size(64)));   // the same as 32 values
typedef uint16_t ks_half __attribute__((vector_size(32)));     // one value of each of 16 pairs

KS_INLINE int64_t ks_whole(int64_t depth) { return ks_ceil(depth, KS_STEPS) * KS_STEPS; }

// Values that a panel takes.
KS_INLINE int64_t ks_panel_size(int64_t width, int64_t depth) { return width * ks_whole(depth) + KS_TAIL; }

// May the products of two panels, or sums of them, be subnormal?
KS_INLINE int ks_flushes(const ks_bf16 *a_tail, const ks_bf16 *b_tail) {
    return !*a_tail || !*b_tail || *a_tail + *b_tail < KS_EXPONENTS;
}

// The least so far and these, as numbers without sign less 1: so 0 is the largest.
KS_INLINE ks_values ks_lower(ks_values least, ks_sixteen pairs) {
    const ks_values sizes = ((ks_values)pairs & 0x7fff) - 1;
#if defined(__AVX512BW__)
    return (ks_values)_mm512_min_epu16((__m512i)least, (__m512i)sizes);
#else
    const ks_values less = (ks_values)(sizes < least);
    return (sizes & less) | (least & ~less);
#endif
}

// The exponent of the smallest number, 0 when it is subnormal, 255 where there is none but 0.
static __attribute__((noinline, unused)) ks_bf16 ks_exponent(ks_values least) {
    uint16_t low = 0xffff;
    for (int i = 0; i < 32; i++) low = least[i] < low ? least[i] : low;
    return low == 0xffff ? 255 : (low + 1) >> 7;
}

// `count` values, at most 16, then 0.
KS_INLINE ks_half ks_load_half(const ks_bf16 *p, int64_t count) {
    ks_half v = {0};
    if (count >= 16) {
        memcpy(&v, p, sizeof v);
    } else {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
        if (count > 0) v = (ks_half)_mm256_maskz_loadu_epi16((__mmask16)((1u << count) - 1), p);
#else
        for (int64_t i = 0; i < count; i++) v[i] = p[i];
#endif
    }
    return v;
}

// `count` values, at most 32, then 0.
KS_INLINE ks_sixteen ks_load_line(const ks_bf16 *p, int64_t step, int64_t count) {
    ks_values v = {0};
    if (step == 1 && count >= 32) {
        memcpy(&v, p, sizeof v);
    } else if (step == 1) {
        const ks_half low = ks_load_half(p, count), high = ks_load_half(p + 16, count - 16);
        memcpy(&v, &low, sizeof low);
        memcpy((char *)&v + sizeof low, &high, sizeof high);
    } else {
        for (int64_t i = 0; i < ks_least(32, count); i++) v[i] = p[i * step];
    }
    return (ks_sixteen)v;
}

KS_INLINE ks_sixteen ks_pair(ks_half first, ks_half second) {
#if defined(__AVX512F__)  // compilers widen by halves
    const __m512i low = _mm512_cvtepu16_epi32((__m256i)first), high = _mm512_cvtepu16_epi32((__m256i)second);
    return (ks_sixteen)_mm512_or_si512(low, _mm512_slli_epi32(high, 16));
#else
    return __builtin_convertvector(first, ks_sixteen) | __builtin_convertvector(second, ks_sixteen) << 16;
#endif
}

// The first `count` pairs.
KS_INLINE void ks_store_pairs(ks_bf16 *to, ks_sixteen pairs, int64_t count) {
    if (count >= 16) {
        memcpy(to, &pairs, sizeof pairs);
    } else {
#if defined(__AVX512F__)
        _mm512_mask_storeu_epi32(to, (__mmask16)((1u << count) - 1), (__m512i)pairs);
#else
        memcpy(to, &pairs, 4 * (size_t)count);
#endif
    }
}

#define KS_SWAP(d, ...)                                                                                  \
    KS_UNROLL(16) for (int i = 0; i < 16; i++) {                                                         \
        if (i & d) continue;                                                                             \
        const ks_sixteen a = r[i], b = r[i + d];                                                         \
        r[i] = __builtin_shufflevector(a, b, __VA_ARGS__);                                               \
        r[i + d] = __builtin_shufflevector(b, a, KS_OTHERS_##d);                                         \
    }
#define KS_OTHERS_1 17, 1, 19, 3, 21, 5, 23, 7, 25, 9, 27, 11, 29, 13, 31, 15
#define KS_OTHERS_2 18, 19, 2, 3, 22, 23, 6, 7, 26, 27, 10, 11, 30, 31, 14, 15
#define KS_OTHERS_4 20, 21, 22, 23, 4, 5, 6, 7, 28, 29, 30, 31, 12, 13, 14, 15
#define KS_OTHERS_8 24, 25, 26, 27, 28, 29, 30, 31, 8, 9, 10, 11, 12, 13, 14, 15

// Rows become columns.
KS_INLINE void ks_turn_pairs(ks_sixteen r[16]) {
    KS_SWAP(1, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
    KS_SWAP(2, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
    KS_SWAP(4, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
    KS_SWAP(8, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
}

// Some panels by pairs, at least one, of lines that are neighbours in memory: long pieces of two rows at a time.
KS_INLINE void ks_pack_rows(ks_bf16 *out, const int64_t width, int64_t lines, int64_t depth, const ks_bf16 *from,
                            int64_t k_step, ks_values *least) {
    const int64_t whole = ks_whole(depth), size = ks_panel_size(width, depth), line = KS_LINE_BYTES / 2;
    const int64_t panels = ks_ceil(lines, width);
    for (int64_t q = 0; q < panels; q++) least[q] = ~(ks_values){0};
    for (int64_t k = 0; k < whole; k += 2, from += 2 * k_step) {
        const ks_bf16 *soon = from + KS_ROWS_AHEAD * k_step;
        if (k + KS_ROWS_AHEAD < depth)
            for (int64_t i = 0; i < lines; i += line) __builtin_prefetch(soon + i);
        if (k + KS_ROWS_AHEAD + 1 < depth)
            for (int64_t i = 0; i < lines; i += line) __builtin_prefetch(soon + k_step + i);
        for (int64_t q = 0; q < panels; q++) {
            ks_bf16 *to = out + q * size + k * width;
            ks_values low = least[q];
            for (int64_t c = 0; c < width; c += 16) {
                const int64_t first = q * width + c, count = ks_least(width - c, lines - first);
                const ks_half even = ks_load_half(from + first, k < depth ? count : 0);
                const ks_half odd = ks_load_half(from + k_step + first, k + 1 < depth ? count : 0);
                const ks_sixteen pairs = ks_pair(even, odd);
                low = ks_lower(low, pairs);
                ks_store_pairs(to + 2 * c, pairs, width - c);
            }
            least[q] = low;
        }
    }
    for (int64_t q = 0; q < panels; q++) out[q * size + width * whole] = ks_exponent(least[q]);
}

// One panel, 16 lines by 16 pairs at a time.
KS_INLINE void ks_pack_squares(ks_bf16 *out, const int64_t width, const int by_lines, int64_t lines, int64_t depth,
                               const ks_bf16 *from, int64_t line_step, int64_t k_step) {
    const int64_t whole = ks_whole(depth);
    const int neighbours = line_step == 1 && k_step != 1;  // lines are, so pairs are loaded, else lines
    ks_values least = ~(ks_values){0};
    for (int64_t k = 0; k < whole; k += 32) {
        for (int64_t c = 0; c < width; c += 16) {
            const ks_bf16 *at = from + c * line_step + k * k_step;
            const int64_t some = ks_least(width - c, lines - c), deep = depth - k;
            ks_sixteen r[16];
            if (neighbours) {
                KS_UNROLL(16) for (int j = 0; j < 16; j++)
                    r[j] = ks_pair(ks_load_half(at + 2 * j * k_step, 2 * j < deep ? some : 0),
                                   ks_load_half(at + (2 * j + 1) * k_step, 2 * j + 1 < deep ? some : 0));
            } else if (k_step == 1 && some >= 16 && deep >= 32) {
                KS_UNROLL(16) for (int j = 0; j < 16; j++) memcpy(&r[j], at + j * line_step, sizeof r[j]);
            } else {
                for (int j = 0; j < 16; j++)
                    r[j] = j < some ? ks_load_line(at + j * line_step, k_step, deep) : (ks_sixteen){0};
            }
            KS_UNROLL(16) for (int j = 0; j < 16; j++) least = ks_lower(least, r[j]);
            if (neighbours == by_lines) ks_turn_pairs(r);
            if (by_lines) {
                KS_UNROLL(16) for (int j = 0; j < 16; j++)
                    memcpy(out + k * width + (c + j) * 32, &r[j], sizeof r[j]);
            } else {
                KS_UNROLL(16) for (int j = 0; j < 16; j++)
                    if (k + 2 * j < whole) ks_store_pairs(out + (k + 2 * j) * width + 2 * c, r[j], width - c);
            }
        }
    }
    out[width * whole] = ks_exponent(least);
}

// One panel by lines, of lines that are contiguous along k: four at a time, the next four fetched meanwhile.
KS_INLINE void ks_pack_lines(ks_bf16 *out, const int64_t width, int64_t lines, int64_t depth, const ks_bf16 *from,
                             int64_t line_step) {
    const int64_t whole = ks_whole(depth);
    ks_values least = ~(ks_values){0};
    for (int64_t i = 0; i < width; i += 4, from += 4 * line_step) {
        const int64_t some = ks_least(4, lines - i), full = some == 4 ? depth / 32 * 32 : 0;
        ks_bf16 *to = out + i * 32;
        for (int64_t k = 0; k < whole; k += 32, to += 32 * width) {
            ks_sixteen r[4];
            if (k < full) {
                KS_UNROLL(4) for (int j = 0; j < 4; j++) memcpy(&r[j], from + j * line_step + k, sizeof r[j]);
                KS_UNROLL(4) for (int j = 0; j < 4; j++) __builtin_prefetch(from + (j + 4) * line_step + k);
            } else {
                for (int j = 0; j < 4; j++)
                    r[j] = j < some ? ks_load_line(from + j * line_step + k, 1, depth - k) : (ks_sixteen){0};
            }
            KS_UNROLL(4) for (int j = 0; j < 4; j++) {
                least = ks_lower(least, r[j]);
                memcpy(to + 32 * j, &r[j], sizeof r[j]);
            }
        }
    }
    out[width * whole] = ks_exponent(least);
}

// Packs lines into panels of `width`, the last one filled up with 0; the value at (line, k) is
// from[line * line_step + k * k_step]. By lines, `width` is a multiple of 16.
KS_INLINE void ks_pack_pairs(ks_bf16 *out, const int64_t width, const int by_lines, int64_t lines, int64_t depth,
                             const ks_bf16 *from, int64_t line_step, int64_t k_step) {
    const int64_t size = ks_panel_size(width, depth);
    if (line_step == 1 && !by_lines) {
        ks_values least[KS_ROW_BYTES / 2 / 4 + 1];
        const int64_t some = ks_ceil(KS_ROW_BYTES / 2, width) * width;
        for (int64_t i = 0; i < lines; i += some, out += some / width * size)
            ks_pack_rows(out, width, ks_least(some, lines - i), depth, from + i, k_step, least);
        return;
    }
    if (k_step == 1 && by_lines) {
        for (int64_t i = 0; i < lines; i += width, out += size)
            ks_pack_lines(out, width, lines - i, depth, from + i * line_step, line_step);
        return;
    }
    for (int64_t i = 0; i < lines; i += width, out += size)
        ks_pack_squares(out, width, by_lines, lines - i, depth, from + i * line_step, line_step, k_step);
}

#endif
