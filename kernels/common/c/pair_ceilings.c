// common/pair_ceilings: what the units that multiply pairs of bfloat16 can do at most, for the model's predictions.
//
// Entries   ks_ceiling_pairs  one task a thread: `rounds` of independent products in registers
// Buffers   0: one result of KS_VECTOR_BYTES a thread, 128 bytes apart, as for ks_ceiling_fma
// Sizes     0: rounds
// Defines   KS_AMX 0 or 1: which unit; KS_MR KS_NR KS_KU: of the tile that the header makes besides

#define KS_DOUBLE 0

#include "kernsearch.h"
#include "vector.h"
#include "pair_tile.h"

#define CHAINS 12
#define RESULT_BYTES 128

static void pairs_task(void *context, int64_t index) {
    const ks_call *call = context;
    float *result = (float *)((char *)call->buffers[0] + index * RESULT_BYTES);
#if KS_TILES
    ks_bf16 ones[16 * 32];
    float sums[16 * 16];
    for (int i = 0; i < 16 * 32; i++) ones[i] = 0x3f80;
    if (!ks_tiles_allowed) return;
    ks_begin_tiles();
    __asm__ volatile("" ::: "memory");
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, ones, 64);
    _tile_loadd(5, ones, 64);
    for (int64_t round = 0; round < call->sizes[0]; round++) {
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 5);
        _tile_dpbf16ps(2, 4, 5);
        _tile_dpbf16ps(3, 4, 5);
    }
    _tile_stored(0, sums, 64);
    ks_end_tiles();
    *result = 0.5f + 0 * sums[0];
#elif KS_PAIR_VECTORS
    __m512 sum[CHAINS];
    const __m512i ones = _mm512_set1_epi16(0x3f80);
    KS_UNROLL(12)
    for (int i = 0; i < CHAINS; i++) sum[i] = _mm512_set1_ps(*result + (float)i);
    for (int64_t round = 0; round < call->sizes[0]; round++) {
        KS_UNROLL(12)
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = _mm512_dpbf16_ps(sum[i], (__m512bh)ones, (__m512bh)ones);
            __asm__("" : "+v"(sum[i]));
        }
    }
    KS_UNROLL(12)
    for (int i = 1; i < CHAINS; i++) sum[0] += sum[i];
    *result = 0.5f + 0 * sum[0][0];
#else
    *result = 0.5f;
#endif
}

void ks_ceiling_pairs(const ks_call *call) { ks_parallel(call, call->threads, pairs_task, (void *)call); }
