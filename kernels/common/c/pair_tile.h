// Register tiles of packed pairs of bfloat16 (pairs.h): products of pairs, summed in float32.
//
// The includer gives KS_AMX, KS_MR rows and KS_NR columns of the tile, and KS_KU. All loops compute
//
//     out[i, j] = (out[i, j] +) sum over k of a[i, k] * b[k, j]       i < MR, j < NR, out an array of MR x NR floats
//
// tiles     KS_AMX 1: TDPBF16PS, up to four tiles of 16 x 16 sums
// vectors   KS_AMX 0: VDPBF16PS, MR rows of vectors of 16 sums
// exact     multiply-adds of float32, which keep subnormal numbers; also where the compiler has neither instruction, the
//           system does not let the process use tiles, or KS_EXACT says so
//
// Which of them runs depends on the numbers of whole panels alone, so results do not depend on threads.

#ifndef KS_PAIR_TILE_H
#define KS_PAIR_TILE_H

#include "pairs.h"

#if KS_AMX && !defined(KS_EXACT) && defined(__AMX_TILE__) && defined(__AMX_BF16__)
#define KS_TILES 1
#include <sys/syscall.h>
#include <unistd.h>
#else
#define KS_TILES 0
#endif
#if !KS_AMX && !defined(KS_EXACT) && defined(__AVX512BF16__)
#define KS_PAIR_VECTORS 1
#else
#define KS_PAIR_VECTORS 0
#endif

_Static_assert(KS_NR % 16 == 0, "NR is not a whole number of vectors");
#if KS_AMX
_Static_assert(KS_MR % 16 == 0, "MR is not a whole number of tiles");
_Static_assert(KS_MR * KS_NR <= 4 * 256, "sums take more than four tiles");
_Static_assert(KS_MR != 48 && KS_NR != 48, "three tiles side by side are not a shape that the source has");
#else
_Static_assert(KS_MR * (KS_NR / 16) + KS_NR / 16 + 1 <= KS_VECTOR_REGISTERS + 8,
               "register tile needs far more vector registers than the device has");
#endif

// Parts of panels that are wanted soon: the tile fetches them into the second level cache, a share at each step.
typedef struct {
    const char *a, *b;
    int64_t a_lines, b_lines;
} ks_soon;

KS_INLINE void ks_fetch_some(ks_soon *soon) {
    for (int64_t l = 0; l < soon->a_lines; l++, soon->a += KS_LINE_BYTES) __builtin_prefetch(soon->a, 0, 2);
    for (int64_t l = 0; l < soon->b_lines; l++, soon->b += KS_LINE_BYTES) __builtin_prefetch(soon->b, 0, 2);
}

// Of packed panels: rows by lines or by pairs, columns by pairs.
static __attribute__((noinline, unused)) void ks_exact_tile(int64_t depth, const ks_bf16 *a, const ks_bf16 *b,
                                                            float *out, int add) {
    for (int64_t i = 0; i < KS_MR; i++) {
        for (int64_t j = 0; j < KS_NR; j += KS_LANES) {
            float *place = out + i * KS_NR + j;
            ks_v sum = add ? ks_load_all(place) : (ks_v){0};
            for (int64_t k = 0; k < depth; k += 2) {
                const ks_bf16 *one = a + k / KS_STEPS * KS_STEPS * KS_MR + i * KS_STEPS + k % KS_STEPS;
                ks_u pairs;
                memcpy(&pairs, b + k * KS_NR + 2 * j, sizeof pairs);
                sum += ks_splat(ks_from_bf16(one[0])) * (ks_v)(pairs << 16);
                sum += ks_splat(ks_from_bf16(one[1])) * (ks_v)(pairs & 0xffff0000u);
            }
            ks_store_all(place, sum);
        }
    }
}

#if KS_TILES

#define KS_ARCH_REQ_XCOMP_PERM 0x1023
#define KS_XTILEDATA 18

static int ks_tiles_allowed;

// Linux lets a process use tiles after it has asked, once; its other threads, later ones too, may then as well.
static __attribute__((constructor)) void ks_ask_for_tiles(void) {
    ks_tiles_allowed = syscall(SYS_arch_prctl, KS_ARCH_REQ_XCOMP_PERM, KS_XTILEDATA) == 0;
}

// What a thread does before its first tile and after its last one: registers that are in use are saved at each switch.
KS_INLINE void ks_begin_tiles(void) {
    static const struct {
        uint8_t palette, start, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shape = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    if (ks_tiles_allowed) _tile_loadconfig(&shape);
}

KS_INLINE void ks_end_tiles(void) {
    if (ks_tiles_allowed) _tile_release();
}

#define KS_LOAD(tile, ...) _tile_loadd(tile, __VA_ARGS__)
#define KS_STORE(tile, ...) _tile_stored(tile, __VA_ARGS__)
#define KS_A(i) a + (i) * 512, 64
#define KS_B(j) b + (j) * 32, 4 * KS_NR
#define KS_SUM(i, j) out + (i) * 16 * KS_NR + (j) * 16, 4 * KS_NR
#define KS_START(tile, i, j)                                           \
    do {                                                               \
        if (add)                                                       \
            KS_LOAD(tile, KS_SUM(i, j));                           \
        else                                                           \
            _tile_zero(tile);                                          \
    } while (0)
// sum + a b, of tiles by number
#define KS_ADD(sum, a, b) _tile_dpbf16ps(sum, a, b)

// Defines name: some tiles of sums, from what starts them, a step of 32 and what puts them away.
#define KS_DEFINE_TILES_OF(name, start, step, finish)                                                              \
    static __attribute__((noinline, unused)) void name(int64_t depth, const ks_bf16 *a, const ks_bf16 *b, float *out, \
                                                       int add, ks_soon soon) {                                     \
        __asm__ volatile("" ::: "memory"); /* what was stored is there, though no C reads it */                    \
        start;                                                                                                     \
        for (int64_t k = 0; k < depth; k += 32, a += 32 * KS_MR, b += 32 * KS_NR) {                                \
            ks_fetch_some(&soon);                                                                                  \
            step;                                                                                                  \
        }                                                                                                          \
        finish;                                                                                                    \
        __asm__ volatile("" ::: "memory");                                                                         \
    }

KS_DEFINE_TILES_OF(ks_tiles_1x1, KS_START(0, 0, 0),
                   KS_LOAD(4, KS_A(0)); KS_LOAD(6, KS_B(0)); KS_ADD(0, 4, 6),
                   KS_STORE(0, KS_SUM(0, 0)))
KS_DEFINE_TILES_OF(ks_tiles_1x2, KS_START(0, 0, 0); KS_START(1, 0, 1),
                   KS_LOAD(4, KS_A(0)); KS_LOAD(6, KS_B(0)); KS_ADD(0, 4, 6);
                   KS_LOAD(7, KS_B(1)); KS_ADD(1, 4, 7),
                   KS_STORE(0, KS_SUM(0, 0)); KS_STORE(1, KS_SUM(0, 1)))
KS_DEFINE_TILES_OF(ks_tiles_2x1, KS_START(0, 0, 0); KS_START(2, 1, 0),
                   KS_LOAD(6, KS_B(0)); KS_LOAD(4, KS_A(0)); KS_ADD(0, 4, 6);
                   KS_LOAD(5, KS_A(1)); KS_ADD(2, 5, 6),
                   KS_STORE(0, KS_SUM(0, 0)); KS_STORE(2, KS_SUM(1, 0)))
KS_DEFINE_TILES_OF(ks_tiles_2x2, KS_START(0, 0, 0); KS_START(1, 0, 1); KS_START(2, 1, 0); KS_START(3, 1, 1),
                   KS_LOAD(6, KS_B(0)); KS_LOAD(4, KS_A(0)); KS_ADD(0, 4, 6);
                   KS_LOAD(7, KS_B(1)); KS_ADD(1, 4, 7);
                   KS_LOAD(5, KS_A(1)); KS_ADD(2, 5, 6); KS_ADD(3, 5, 7),
                   KS_STORE(0, KS_SUM(0, 0)); KS_STORE(1, KS_SUM(0, 1));
                   KS_STORE(2, KS_SUM(1, 0)); KS_STORE(3, KS_SUM(1, 1)))
KS_DEFINE_TILES_OF(ks_tiles_1x4, KS_START(0, 0, 0); KS_START(1, 0, 1); KS_START(2, 0, 2); KS_START(3, 0, 3),
                   KS_LOAD(4, KS_A(0)); KS_LOAD(6, KS_B(0)); KS_ADD(0, 4, 6);
                   KS_LOAD(7, KS_B(1)); KS_ADD(1, 4, 7); KS_LOAD(5, KS_B(2)); KS_ADD(2, 4, 5);
                   KS_LOAD(6, KS_B(3)); KS_ADD(3, 4, 6),
                   KS_STORE(0, KS_SUM(0, 0)); KS_STORE(1, KS_SUM(0, 1));
                   KS_STORE(2, KS_SUM(0, 2)); KS_STORE(3, KS_SUM(0, 3)))
KS_DEFINE_TILES_OF(ks_tiles_4x1, KS_START(0, 0, 0); KS_START(1, 1, 0); KS_START(2, 2, 0); KS_START(3, 3, 0),
                   KS_LOAD(6, KS_B(0)); KS_LOAD(4, KS_A(0)); KS_ADD(0, 4, 6);
                   KS_LOAD(5, KS_A(1)); KS_ADD(1, 5, 6); KS_LOAD(7, KS_A(2)); KS_ADD(2, 7, 6);
                   KS_LOAD(4, KS_A(3)); KS_ADD(3, 4, 6),
                   KS_STORE(0, KS_SUM(0, 0)); KS_STORE(1, KS_SUM(1, 0));
                   KS_STORE(2, KS_SUM(2, 0)); KS_STORE(3, KS_SUM(3, 0)))

#undef KS_A
#undef KS_B
#undef KS_SUM

// The tile that is just large enough for so many rows and columns of the panels.
KS_INLINE void ks_unit_tile(int64_t rows, int64_t columns, int64_t depth, const ks_bf16 *a, const ks_bf16 *b,
                            float *out, int add, ks_soon soon) {
    const int64_t down = KS_MR > 16 ? ks_ceil(rows, 16) : 1, across = KS_NR > 16 ? ks_ceil(columns, 16) : 1;
    soon.a_lines = depth ? ks_ceil(soon.a_lines, depth / 32) : 0;
    soon.b_lines = depth ? ks_ceil(soon.b_lines, depth / 32) : 0;
    if (KS_NR >= 64 && across > 2) ks_tiles_1x4(depth, a, b, out, add, soon);
    else if (KS_MR >= 64 && down > 2) ks_tiles_4x1(depth, a, b, out, add, soon);
    else if (KS_MR > 16 && KS_NR > 16 && down > 1 && across > 1) ks_tiles_2x2(depth, a, b, out, add, soon);
    else if (KS_NR > 16 && across > 1) ks_tiles_1x2(depth, a, b, out, add, soon);
    else if (KS_MR > 16 && down > 1) ks_tiles_2x1(depth, a, b, out, add, soon);
    else ks_tiles_1x1(depth, a, b, out, add, soon);
}

#elif KS_PAIR_VECTORS

KS_INLINE void ks_begin_tiles(void) {}
KS_INLINE void ks_end_tiles(void) {}

// Defines name: MR rows of nv vectors of sums.
#define KS_DEFINE_PAIR_TILE(name, nv)                                                                             \
    static __attribute__((noinline, unused)) void name(int64_t depth, const ks_bf16 *a, const ks_bf16 *b,         \
                                                       float *out, int add) {                                     \
        __m512 sum[KS_MR][nv];                                                                                    \
        KS_UNROLL(32) for (int i = 0; i < KS_MR; i++) {                                                           \
            KS_UNROLL(32) for (int j = 0; j < nv; j++) sum[i][j] = _mm512_setzero_ps();                           \
        }                                                                                                         \
        KS_UNROLL(KS_KU) for (int64_t k = 0; k < depth; k += 2) {                                                 \
            __m512i row[nv];                                                                                      \
            KS_UNROLL(32) for (int j = 0; j < nv; j++) {                                                          \
                row[j] = _mm512_loadu_si512(b + 32 * j);                                                          \
                __asm__("" : "+v"(row[j]));                                                                       \
            }                                                                                                     \
            KS_UNROLL(32) for (int i = 0; i < KS_MR; i++) {                                                       \
                int one;                                                                                          \
                memcpy(&one, a + 2 * i, sizeof one);                                                              \
                const __m512i both = _mm512_set1_epi32(one);                                                      \
                KS_UNROLL(32) for (int j = 0; j < nv; j++)                                                        \
                    sum[i][j] = _mm512_dpbf16_ps(sum[i][j], (__m512bh)both, (__m512bh)row[j]);                    \
            }                                                                                                     \
            a += 2 * KS_MR;                                                                                       \
            b += 2 * KS_NR;                                                                                       \
        }                                                                                                         \
        KS_UNROLL(32) for (int i = 0; i < KS_MR; i++) {                                                           \
            KS_UNROLL(32) for (int j = 0; j < nv; j++) {                                                          \
                float *place = out + i * KS_NR + 16 * j;                                                          \
                const __m512 kept = add ? _mm512_loadu_ps(place) : _mm512_setzero_ps();                           \
                _mm512_storeu_ps(place, sum[i][j] + kept);                                                        \
            }                                                                                                     \
        }                                                                                                         \
    }

KS_DEFINE_PAIR_TILE(ks_pair_tile_1, 1)
KS_DEFINE_PAIR_TILE(ks_pair_tile_2, 2)
KS_DEFINE_PAIR_TILE(ks_pair_tile_all, KS_NR / 16)

// The tile that is just wide enough.
KS_INLINE void ks_unit_tile(int64_t rows, int64_t columns, int64_t depth, const ks_bf16 *a, const ks_bf16 *b,
                            float *out, int add, ks_soon soon) {
    (void)rows;
    ks_fetch_some(&soon);
    if (KS_NR > 16 && columns <= 16) ks_pair_tile_1(depth, a, b, out, add);
    else if (KS_NR > 32 && columns <= 32) ks_pair_tile_2(depth, a, b, out, add);
    else ks_pair_tile_all(depth, a, b, out, add);
}

#else

KS_INLINE void ks_begin_tiles(void) {}
KS_INLINE void ks_end_tiles(void) {}
KS_INLINE void ks_unit_tile(int64_t rows, int64_t columns, int64_t depth, const ks_bf16 *a, const ks_bf16 *b,
                            float *out, int add, ks_soon soon) {
    (void)rows, (void)columns, (void)soon;
    ks_exact_tile(depth, a, b, out, add);
}

#endif

// out = (out +) a b, for the first rows and columns of two panels; `exact`: keep subnormal numbers.
KS_INLINE void ks_pair_tile(int64_t rows, int64_t columns, int64_t depth, const ks_bf16 *a, const ks_bf16 *b,
                            float *out, int add, int exact, ks_soon soon) {
#if KS_TILES
    exact |= !ks_tiles_allowed;
#endif
    if (exact)
        ks_exact_tile(depth, a, b, out, add);
    else
        ks_unit_tile(rows, columns, depth, a, b, out, add, soon);
}

#endif
